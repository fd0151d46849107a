"""A cold run starts quickly because its server imports little: how many modules, and which ones not."""

from __future__ import annotations

import re
from pathlib import Path

from tests.client.command import Kedge
from tests.e2e.home import Home, asking

MAX_MODULES = 465  # of the server's process, until the first answer; about 250 are Kedge's
# Each costs milliseconds, and is imported at its first use.
LATE = {
    "anyio",
    "click",
    "email",
    "ftplib",
    "h11",
    "http",
    "httpcore2",
    "httpx2",
    "importlib.metadata",
    "jsonschema_rs",
    "keyring",
    "kedge.models.embedded.fetch",
    "kedge.tools.web.http",
    "kedge.tui",
    "markdown_it",
    "multiprocessing",
    "pygments",
    "rich",
    "textual",
    "truststore",
    "urllib.request",
    "uvicorn",
    "xllamacpp",
    "xml",
    "zipfile",
}


def test_the_server_of_a_cold_run_imports_few_modules_and_none_that_can_wait(home: Home, tmp_path: Path) -> None:
    done = Kedge(home, tmp_path).run(asking(text="hello"), "-q", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert (done.code, done.out) == (0, "hello\n")
    modules = re.findall(r"import time: +\d+ \| +\d+ \| +(\S+)", home.log)
    assert "kedge.agent.agent" in modules
    assert not [name for name in modules for late in LATE if name == late or name.startswith(f"{late}.")]
    assert len(modules) <= MAX_MODULES, f"{len(modules)} modules: import later what the first answer does not need"
