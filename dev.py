#!/usr/bin/env python3
"""All developer commands. Needs only Python and pip.

usage: python3 dev.py COMMAND [ARGUMENT ...]

  test [...]    the checks and all tests; this is what CI runs; arguments go to pytest
  quick [...]   ruff, import-linter and the fast tests of the core, in about a minute; arguments go to pytest
  check         ruff, pyright, import-linter, vulture and deptry, in parallel
  tests [...]   pytest only; arguments go to it (tests/cli -k version -n0)
  fix           format and fix with ruff
  sim [...]     a longer simulation; arguments go to tests.sim.explore
  soak [...]    a mixed load on a server that is killed, then a check of every promise (--minutes 1, 10 or 60; --seed N)
  mutants [...] mutation testing of the core (--seed N --count N --only PACKAGE --jobs N)
  bench [...]   the named benchmarks, or all; `bench peers --help` compares with other agents
  venv DIR      create an empty virtual environment in DIR

The tools are installed into the active virtual environment, or into .venv, which is created if needed. They are
installed once, and again when pyproject.toml changes.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import time
import venv
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OLDEST_PYTHON = (3, 11)

CHECKS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "pyright": ["pyright", "--warnings"],
    "import-linter": ["lint-imports"],
    "vulture": ["vulture", *(name for name in ("src", "tests", "bench", "dev.py") if (ROOT / name).exists())],
    "deptry": ["deptry", "src"],
}

QUICK_CHECKS = ("ruff check", "ruff format", "import-linter")
# The fast tests that cover the most of the core. Not in it: real processes, terminals, wheels, pages, slow tests.
QUICK_TESTS = [
    "-m",
    "not slow and not long",
    "tests/test_layout.py",
    *(f"tests/{name}" for name in ("protocol", "config", "files", "feed", "store", "engine", "contract", "agent")),
    "tests/tools/permissions",
    "tests/models/wires",
    "tests/tui/state",
]

# Two workers for each core, because many tests wait for other processes. An idle worker takes tests from the others.
PARALLEL = ["-n", str(2 * (os.cpu_count() or 1)), "--dist", "worksteal"]

Check = Future[tuple[str, int, str, float]]  # name, exit code, output, seconds

QUIET = ["--quiet", "--quiet"]  # pip's errors, without its warnings


def main(argv: list[str]) -> int:
    if sys.version_info < OLDEST_PYTHON:
        return refuse(f"Python 3.11 or newer is required, this is {sys.version.split()[0]}")
    command, args = (argv[0], argv[1:]) if argv else ("", [])
    os.chdir(ROOT)
    if command == "venv" and len(args) == 1:
        make_venv(Path(args[0]))
        return 0
    if command not in ("test", "quick", "check", "tests", "fix", "sim", "soak", "mutants", "bench"):
        print((__doc__ or "").strip())
        return 0 if command in ("-h", "--help", "help") else 2

    tools = Tools.install()
    if command in ("test", "quick"):
        is_quick = command == "quick"
        with tools.start_checks(QUICK_CHECKS if is_quick else tuple(CHECKS)) as checks:
            code = tools.pytest([*QUICK_TESTS, *args] if is_quick else args)
            failed = report_checks(checks)
            return code or failed
    if command == "check":
        with tools.start_checks(tuple(CHECKS)) as checks:
            return report_checks(checks)
    if command == "tests":
        return tools.pytest(args)
    if command == "fix":
        return tools.run("ruff", "check", "--fix", ".") | tools.run("ruff", "format", ".")
    if command == "sim":
        return tools.run("python", "-m", "tests.sim.explore", *args)
    if command == "soak":
        return tools.run("python", "-m", "tests.soak", *args)
    if command == "mutants":
        return tools.run("python", "-m", "tests.mutants", *args)
    return tools.bench(args)


class Tools:
    """The programs of one virtual environment that has `.[dev]` installed."""

    def __init__(self, prefix: Path) -> None:
        self.bin = prefix / "bin"
        # Write bytecode: the tests start hundreds of interpreters.
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.env["PATH"] = os.pathsep.join([str(self.bin), self.env.get("PATH", os.defpath)])
        self.env["VIRTUAL_ENV"] = str(prefix)

    @classmethod
    def install(cls) -> "Tools":
        is_inside_venv = sys.prefix != sys.base_prefix
        prefix = Path(sys.prefix) if is_inside_venv else ROOT / ".venv"
        stamp = prefix / "kedge-dev-stamp"
        fingerprint = installation_fingerprint()
        tools = cls(prefix)
        if stamp.exists() and stamp.read_text() == fingerprint and (tools.bin / "python").exists():
            return tools
        if not is_inside_venv:
            make_venv(prefix)
        print(f"Installing the development tools into {prefix} …", flush=True)
        code = tools.run("python", "-m", "pip", "install", *QUIET, "--editable", ".[dev]")
        if code:
            sys.exit(code)
        stamp.write_text(fingerprint)
        return tools

    def run(self, program: str, *args: str) -> int:
        return subprocess.run([self.bin / program, *args], env=self.env, check=False).returncode

    @contextmanager
    def start_checks(self, names: tuple[str, ...]) -> Generator[list[Check]]:
        """Run checks in the background."""
        with ThreadPoolExecutor(len(names)) as pool:
            yield [pool.submit(self.check_one, name) for name in names]

    def check_one(self, name: str) -> tuple[str, int, str, float]:
        program, *args = CHECKS[name]
        began = time.monotonic()
        result = subprocess.run(
            [self.bin / program, *args],
            env=self.env,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return name, result.returncode, result.stdout, time.monotonic() - began

    def pytest(self, args: list[str]) -> int:
        return self.run("python", "-m", "pytest", *PARALLEL, *args)

    def bench(self, names: list[str]) -> int:
        if names[:1] == ["peers"]:  # a package with its own arguments
            return self.run("python", "-m", "bench.peers", *names[1:])
        known = {path.stem: path for path in sorted(Path("bench").glob("*.py")) if not path.stem.startswith("_")}
        unknown = [name for name in names if name not in known]
        if unknown:
            return refuse(f"unknown benchmark {unknown[0]!r}; choose from {', '.join([*known, 'peers'])}")
        return max([self.run("python", str(known[name])) for name in names or known], default=0)


def report_checks(checks: list[Check]) -> int:
    """Wait for checks, print a line for each and the output of those that failed, and return an exit code."""
    code = 0
    for done in as_completed(checks):
        name, failed, output, took_s = done.result()
        print(f"{'FAILED' if failed else 'ok':6}  {name:13}  {took_s:5.1f} s", flush=True)
        if failed:
            code = 1
            print(output, flush=True)
    return code


def make_venv(where: Path) -> None:
    """Create a virtual environment with pip. On Debian, whose Python has no ensurepip, the system's pip installs it."""
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    venv.create(where, clear=True, symlinks=True, with_pip=has_ensurepip)
    if not has_ensurepip:
        pip = [sys.executable, "-m", "pip", "--python", str(where / "bin" / "python")]
        subprocess.run([*pip, "install", *QUIET, "pip"], check=True)


def installation_fingerprint() -> str:
    """Return a hash of everything the installation depends on: requirements, directory, Python version."""
    inputs = [(ROOT / "pyproject.toml").read_bytes(), (ROOT / "src/kedge/version.py").read_bytes()]
    return hashlib.sha256(b"\0".join([*inputs, str(ROOT).encode(), sys.version.encode()])).hexdigest()


def refuse(why: str) -> int:
    print(f"dev.py: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
