"""llama.cpp's own server on loopback, as a user of it has it: a process that serves HTTP and knows nothing of Kedge.

usage: python -m tests.models.embedded.llama_server MODEL.gguf [TEMPLATE]

Says its address on standard output when it answers, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[3]
CONTEXT_TOKENS = 2048
# A chat template that has tools, in the way of many models: llama.cpp learns from it how calls are written.
WITH_TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\\nCall functions.\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n' }}{{- tool | tojson }}
{%- endfor %}
{{- '\\n</tools>\\nAnswer with <tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\nIt says: ' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.function.name }}{{- '", "arguments": ' }}
{{- tool_call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@contextlib.contextmanager
def serving(model: Path, template: str = "") -> Generator[str]:
    """Its base URL."""
    command = [sys.executable, "-m", "tests.models.embedded.llama_server", str(model), template]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), address
        yield f"{address}/v1"
    finally:
        process.kill()
        process.communicate()


def main(argv: list[str]) -> None:
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

    llama = cast("Any", xllamacpp)
    params = llama.CommonParams()
    params.model.path = argv[0]
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # whichever is free
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.n_predict = 128
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = 1
    params.ui = False
    params.use_jinja = True
    params.chat_template = argv[1] if len(argv) > 1 else ""
    server = llama.Server(params)
    os.write(1, f"{server.listening_address}\n".encode())
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
