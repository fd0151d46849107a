#!/usr/bin/env python3
"""All developer commands. Needs only Python and pip.

usage: python3 dev.py COMMAND [ARGUMENT ...]

  test          the checks, then all tests; this is what CI runs
  quick [...]   ruff, import-linter and the fast tests of the core, in 90 seconds; arguments go to pytest
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
from concurrent.futures import ThreadPoolExecutor, as_completed
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
# The fast tests that cover the most of the core. Not in it: real processes, terminals, wheels, pages.
QUICK_TESTS = [
    "tests/test_layout.py",
    *(f"tests/{name}" for name in ("protocol", "config", "files", "feed", "store", "engine", "contract", "agent")),
    "tests/tools/permissions",
    "tests/models/wires",
    "tests/tui/state",
]

# Two workers for each core, because many tests wait for other processes. An idle worker takes tests from the others.
PARALLEL = ["-n", str(2 * (os.cpu_count() or 1)), "--dist", "worksteal"]

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
        failed = tools.check(QUICK_CHECKS if command == "quick" else tuple(CHECKS))
        if failed:
            print(f"\nFailed: {', '.join(failed)}. The tests run anyway, but the exit code will be 1.\n", flush=True)
        return tools.pytest([*QUICK_TESTS, *args] if command == "quick" else args) or int(bool(failed))
    if command == "check":
        return int(bool(tools.check(tuple(CHECKS))))
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

    def check(self, names: tuple[str, ...]) -> list[str]:
        """Run checks in parallel, print a line for each, and return the names of those that failed."""
        failed: list[str] = []
        with ThreadPoolExecutor(len(names)) as pool:
            for done in as_completed([pool.submit(self.check_one, name) for name in names]):
                name, code, output, took_s = done.result()
                print(f"{'FAILED' if code else 'ok':6}  {name:13}  {took_s:5.1f} s", flush=True)
                if code:
                    failed.append(name)
                    print(output, flush=True)
        return failed

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
