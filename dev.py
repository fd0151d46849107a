#!/usr/bin/env python3
"""Everything a developer runs, with nothing but Python and pip.

usage: python3 dev.py COMMAND [ARGUMENT ...]

  test         what CI does: the checks, then all tests
  check        ruff, pyright, import-linter, vulture and deptry, side by side
  tests [...]  pytest alone; arguments go to it (tests/cli -k version -n0)
  fix          let ruff format and mend what it can
  sim [...]    a longer simulation; arguments go to tests.sim.explore
  soak [...]   a mixed load on a server that is killed, then every promise checked (--minutes 1, 10 or 60; --seed N)
  mutants [...] small mistakes planted in a copy of the core: do the tests notice? (--seed N --count N
               --only PACKAGE --jobs N)
  bench [...]  the benchmarks named, or all of them; `bench peers --help` compares with others
  venv DIR     a bare virtual environment in DIR

The tools live in the active virtual environment, or in .venv, which is made when there is none. They are installed
once, and again when pyproject.toml changes.
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

# One worker a core; a worker that is done takes work from the others, because a few crash tests are long.
PARALLEL = ["-n", "auto", "--dist", "worksteal"]

QUIET = ["--quiet", "--quiet"]  # pip's errors, without its warnings


def main(argv: list[str]) -> int:
    if sys.version_info < OLDEST_PYTHON:
        return refuse(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    command, args = (argv[0], argv[1:]) if argv else ("", [])
    os.chdir(ROOT)
    if command == "venv" and len(args) == 1:
        make_venv(Path(args[0]))
        return 0
    if command not in ("test", "check", "tests", "fix", "sim", "soak", "mutants", "bench"):
        print((__doc__ or "").strip())
        return 0 if command in ("-h", "--help", "help") else 2

    tools = Tools.ready()
    if command == "test":
        failed = tools.check()
        if failed:
            print(f"\nfailed: {', '.join(failed)}. The tests run all the same, but this will end with 1.\n", flush=True)
        return tools.pytest(args) or int(bool(failed))
    if command == "check":
        return int(bool(tools.check()))
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
    """The programs of one virtual environment, with everything of `.[dev]` in it."""

    def __init__(self, prefix: Path) -> None:
        self.bin = prefix / "bin"
        # Bytecode is wanted: the tests start hundreds of interpreters.
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.env["PATH"] = os.pathsep.join([str(self.bin), self.env.get("PATH", os.defpath)])
        self.env["VIRTUAL_ENV"] = str(prefix)

    @classmethod
    def ready(cls) -> "Tools":
        is_inside_venv = sys.prefix != sys.base_prefix
        prefix = Path(sys.prefix) if is_inside_venv else ROOT / ".venv"
        stamp = prefix / "kedge-dev-stamp"
        wanted = fingerprint()
        tools = cls(prefix)
        if stamp.exists() and stamp.read_text() == wanted and (tools.bin / "python").exists():
            return tools
        if not is_inside_venv:
            make_venv(prefix)
        print(f"installing the development tools into {prefix} …", flush=True)
        code = tools.run("python", "-m", "pip", "install", *QUIET, "--editable", ".[dev]")
        if code:
            sys.exit(code)
        stamp.write_text(wanted)
        return tools

    def run(self, program: str, *args: str) -> int:
        return subprocess.run([self.bin / program, *args], env=self.env, check=False).returncode

    def check(self) -> list[str]:
        """Runs all checks at once, a line each; returns the names of those that failed, whose output is shown."""
        failed: list[str] = []
        with ThreadPoolExecutor(len(CHECKS)) as pool:
            for done in as_completed([pool.submit(self.check_one, name) for name in CHECKS]):
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
        if names[:1] == ["peers"]:  # a package, with arguments of its own; it needs what is not installed here
            return self.run("python", "-m", "bench.peers", *names[1:])
        known = {path.stem: path for path in sorted(Path("bench").glob("*.py")) if not path.stem.startswith("_")}
        unknown = [name for name in names if name not in known]
        if unknown:
            return refuse(f"no benchmark {unknown[0]!r}; there are: {', '.join([*known, 'peers'])}")
        return max([self.run("python", str(known[name])) for name in names or known], default=0)


def make_venv(where: Path) -> None:
    """Also where the system's Python comes without ensurepip, as on Debian: then its own pip puts pip in."""
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    venv.create(where, clear=True, symlinks=True, with_pip=has_ensurepip)
    if not has_ensurepip:
        pip = [sys.executable, "-m", "pip", "--python", str(where / "bin" / "python")]
        subprocess.run([*pip, "install", *QUIET, "pip"], check=True)


def fingerprint() -> str:
    """Whatever an installation depends on: what is wanted, where it points to, and by which Python."""
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
