"""`kedge run` stays quick because of what it does not import; this is the list."""

from __future__ import annotations

from tests.client.command import Kedge, finish

# Each costs more than the whole way of a prompt through a warm server, or leads to something that does.
TOO_HEAVY = {
    "argparse",
    "asyncio",
    "concurrent",
    "dataclasses",
    "datetime",
    "email",
    "hashlib",
    "http",
    "httpx2",
    "importlib.metadata",
    "inspect",
    "ipaddress",
    "logging",
    "msgspec",
    "pathlib",
    "random",
    "sqlite3",
    "ssl",
    "starlette",
    "subprocess",
    "tempfile",
    "threading",
    "traceback",
    "typing",
    "urllib",
    "uuid",
    "uvicorn",
}
OURS = {
    "kedge.server",
    "kedge.engine",
    "kedge.store",
    "kedge.feed",
    "kedge.agent",
    "kedge.models",
    "kedge.client.async_client",
}
SAY_MODULES = "import atexit; atexit.register(lambda: print(*sys.modules))"


def test_a_whole_run_imports_nothing_heavy(kedge: Kedge) -> None:
    done = finish(kedge.start("run", "say hello", "-q", before=SAY_MODULES))
    answer, modules = done.out.splitlines()
    assert (done.code, answer) == (0, "hello")
    loaded = set(modules.split())
    assert "kedge.cli.run" in loaded
    assert not {name for name in loaded if {name, name.partition(".")[0]} & TOO_HEAVY}
    assert not {name for name in loaded if name.startswith(tuple(OURS))}


def test_the_client_package_imports_nothing_until_asked() -> None:
    import subprocess
    import sys

    code = "import sys, kedge.client; print(*(name for name in sys.modules if name.startswith('kedge')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert found.stdout.split() == ["kedge", "kedge.client"]
