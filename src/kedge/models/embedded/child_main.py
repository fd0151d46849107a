"""The process that holds a local model: llama.cpp's own server on a private socket. It ends with whoever started it.

`python -m kedge.models.embedded.child_main SETTINGS` says `ready` on standard output when it answers, and ends when its
standard input does. It is the first to be killed when the machine is short of memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from kedge.models.embedded.settings import Settings

_PR_SET_PDEATHSIG = 1
OOM_SCORE = 500  # of 1000: rather this than the server
HTTP_THREADS = 32  # a stream that is open, or waits for a slot, holds one
# Tokens read at once. A cancel is heard between two of these; a processor is as quick with few, graphics are not.
BATCH = 512 if sys.platform == "darwin" else 64
EXIT_NOT_LOADED = 3


def main(argv: list[str]) -> int:
    settings = msgspec.json.decode(argv[0], type=Settings)
    parent = os.getppid()
    _end_with_parent()
    if os.getppid() != parent:
        return 0  # it has left already
    _be_first_to_go()
    os.umask(0o077)
    server = _serve(settings)
    if server is None:
        return EXIT_NOT_LOADED
    os.write(1, b"ready\n")
    while os.read(0, 4096):
        pass
    os._exit(0)  # answers in flight are nobody's now


def _serve(settings: Settings) -> object | None:
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

    llama = cast("Any", xllamacpp)
    params = llama.CommonParams()
    params.model.path = settings.path
    params.hostnames = [settings.socket]  # a name that ends with .sock is a Unix socket
    params.n_ctx = settings.context * settings.slots
    params.n_parallel = settings.slots
    params.n_batch = params.n_ubatch = BATCH
    params.n_predict = settings.max_output
    params.cpuparams.n_threads = settings.threads
    params.cpuparams_batch.n_threads = settings.threads
    params.n_threads_http = HTTP_THREADS
    params.cache_ram_mib = settings.prompt_cache_mib
    params.verbosity = 1  # errors: never what is said
    params.ui = False
    params.endpoint_slots = False
    params.offline = True
    try:
        return llama.Server(params)
    except RuntimeError:
        return None  # standard error has the reason


def _end_with_parent() -> None:
    """Linux ends us at once, also while the model is being loaded; elsewhere it is the end of standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _be_first_to_go() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    except OSError:
        pass  # not Linux, or not allowed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
