"""The child process of an embedded model: llama.cpp's HTTP server on a private socket.

`python -m kedge.models.embedded.child_main SETTINGS` prints `ready` when it answers, and exits at the end of its
standard input. If the machine runs out of memory, the kernel kills it first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from kedge.models.embedded.gguf import Settings

_PR_SET_PDEATHSIG = 1
OOM_SCORE = 500  # of 1000: kill this process rather than the server
HTTP_THREADS = 32  # each open or waiting stream takes one
# Prompt tokens per batch. A cancel takes effect between batches; small ones cost a CPU nothing, but a GPU.
BATCH = 512 if sys.platform == "darwin" else 64
EXIT_LOAD_FAILED = 3


def main(argv: list[str]) -> int:
    settings = msgspec.json.decode(argv[0], type=Settings)
    parent = os.getppid()
    _exit_with_parent()
    if os.getppid() != parent:
        return 0  # the parent has exited already
    _raise_oom_score()
    os.umask(0o077)
    server = _serve(settings)
    if server is None:
        return EXIT_LOAD_FAILED
    os.write(1, b"ready\n")
    while os.read(0, 4096):
        pass
    os._exit(0)  # nobody reads the answers in flight


def _serve(settings: Settings) -> object | None:
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

    llama = cast("Any", xllamacpp)
    params = llama.CommonParams()
    params.model.path = settings.path
    params.hostnames = [settings.socket]  # llama.cpp takes a name that ends with .sock for a Unix socket
    params.n_ctx = settings.context * settings.slots
    params.n_parallel = settings.slots
    params.n_batch = params.n_ubatch = BATCH
    params.n_predict = settings.max_output
    params.cpuparams.n_threads = settings.threads
    params.cpuparams_batch.n_threads = settings.threads
    params.n_threads_http = HTTP_THREADS
    params.cache_ram_mib = settings.prompt_cache_mib
    params.verbosity = 1  # only errors, never prompts or answers
    params.ui = False
    params.endpoint_slots = False
    params.offline = True
    try:
        return llama.Server(params)
    except RuntimeError:
        return None  # the reason is on standard error


def _exit_with_parent() -> None:
    """On Linux the kernel kills this process with its parent, even while loading; elsewhere standard input ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _raise_oom_score() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    except OSError:
        pass  # not Linux, or not allowed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
