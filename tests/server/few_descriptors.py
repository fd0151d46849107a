"""The scripted server as a process that may open 1,024 files: `python -m tests.server.few_descriptors`."""

from __future__ import annotations

import resource
import runpy

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    runpy.run_module("tests.server.scripted", run_name="__main__", alter_sys=True)
