"""Which tests concern a module, and what they say of a mistake in it. Each worker has a copy of the tree of its own."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutations import diff, mutations

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path("src/kedge")
STAGE_S = 900.0  # for all tests of a stage
TEST_S = 90  # for one: a mistake may make it hang

# The tests of a package, those that are quick first. Others use it, too, but later than its own.
TESTS: dict[str, tuple[str, ...]] = {
    "store": ("store", "contract", "engine", "server", "faults/test_crash_points.py"),
    "engine": ("engine", "contract", "agent", "server", "tools/test_jobs_of_the_engine.py"),
    "feed": ("feed", "contract", "server"),
    "agent": ("agent", "e2e"),
    "tools/permissions": ("tools/permissions", "tools", "agent", "e2e"),
    "server": ("server", "e2e"),
    "client": ("client", "e2e", "faults/wire"),
}

STAND_INS = ("engine/scripted.py",)  # part of the tests, in a way

Verdict = Literal["killed", "survived", "invalid", "equivalent", "unfinished"]


class Mutant(NamedTuple):
    path: str  # below src/kedge
    line: int
    what: str
    source: str
    before: str

    @property
    def package(self) -> str:
        return next(name for name in TESTS if self.path.startswith(f"{name}/"))

    @property
    def module(self) -> str:
        return f"kedge.{self.path.removesuffix('.py').replace('/', '.')}"

    @property
    def diff(self) -> str:
        return diff(self.before, self.source, self.path)


class Judged(NamedTuple):
    mutant: Mutant
    verdict: Verdict
    why: str  # the test that failed, or the reason
    took_s: float


def sample(seed: int, count: int, packages: Sequence[str]) -> list[Mutant]:
    found: list[Mutant] = []
    for package in packages:
        for path in sorted((ROOT / SOURCES / package).rglob("*.py")):
            name = str(path.relative_to(ROOT / SOURCES))
            if name not in STAND_INS:
                before = path.read_text()
                found += [Mutant(name, *each, before) for each in mutations(before)]
    return random.Random(seed).sample(found, min(count, len(found)))


@contextmanager
def copied_tree() -> Generator[Path]:
    """A copy of what git knows of, and of what is new."""
    directory = Path(tempfile.mkdtemp(prefix="kedge-mutants-"))
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, stdout=-1
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def judge(mutant: Mutant, tree: Path) -> Judged:
    """Plant it in the copy, run the tests that concern it until one fails, and take it out again."""
    began = time.monotonic()

    def judged(verdict: Verdict, why: str) -> Judged:
        return Judged(mutant, verdict, why, time.monotonic() - began)

    if (reason := EQUIVALENT.get(_key(mutant))) is not None:
        return judged("equivalent", reason)
    planted = tree / SOURCES / mutant.path
    planted.write_text(mutant.source)
    try:
        if _run(tree, ["-c", f"import {mutant.module}"], TEST_S)[0] != 0:
            return judged("invalid", "it cannot be imported")
        for tests in stages(mutant, tree):
            code, output = _run(tree, ["-c", _PYTEST, *_OPTIONS, *tests], STAGE_S)
            if code == 1:
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
                return judged("killed", failed.group(1) if failed else "?")
            if code != 0:
                return judged("unfinished", f"pytest ended with {code}: {output[-2000:]}")
        return judged("survived", "")
    finally:
        planted.write_text(mutant.before)


def stages(mutant: Mutant, tree: Path) -> list[list[str]]:
    """The test files that name the module first, then all of its package."""
    files = [path for each in TESTS[mutant.package] for path in _files(tree / "tests" / each)]
    stem = mutant.path.rpartition("/")[2].removesuffix(".py")
    parent, _, name = mutant.module.rpartition(".")
    named = re.compile(rf"{re.escape(mutant.module)}\b|from {re.escape(parent)} import [^\n]*\b{name}\b")
    near = [path for path in files if stem in path.stem or named.search(path.read_text())]
    rest = [path for path in files if path not in near]
    return [[str(path.relative_to(tree)) for path in each] for each in (near, rest) if each]


# Threads that a failed test left behind must not keep the process from its end.
_PYTEST = "import os, sys, pytest; code = pytest.main(sys.argv[1:]); sys.stdout.flush(); os._exit(code)"
_OPTIONS = ["-x", "-q", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]


def _files(where: Path) -> list[Path]:
    return sorted(where.rglob("test_*.py")) if where.is_dir() else [where]


_running: set[subprocess.Popen[str]] = set()


def stop() -> None:
    """End the tests that run now; those that wait are not begun."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what a test that failed has left behind


def _run(tree: Path, args: list[str], limit_s: float) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    process = subprocess.Popen(
        [sys.executable, *args],
        cwd=tree,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return -1, "out of time"
    finally:
        _running.discard(process)
        _kill(process)


def _key(mutant: Mutant) -> tuple[str, str, str]:
    changed = [line for line in mutant.diff.splitlines()[3:] if line[:1] in "+-"]
    before = " ".join(line[1:].strip() for line in changed if line.startswith("-"))
    after = " ".join(line[1:].strip() for line in changed if line.startswith("+"))
    return mutant.path, before, after
