"""What do `grep` and `glob` cost beside ripgrep itself, in a tree of 50,000 files; and an edit in a file of 5 MB?

Goal: within 1.2x of `rg` for the same results in the same order (files newest first), as a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
from pathlib import Path

from measure import Samples, noise_told, print_table, wait_quiet

from kedge.files.states import compute_digest
from kedge.tools.builtin.edit import TOOL as EDIT
from kedge.tools.builtin.glob import TOOL as GLOB
from kedge.tools.builtin.grep import TOOL as GREP
from kedge.tools.port import Tool
from kedge.tools.search.ripgrep import find_program_or_fail
from tests.tools.harness import ToolHarness

FILES = 50_000
ROUNDS = 9
RG = (find_program_or_fail(Path("/nowhere")), "--no-config", "--hidden", "--no-require-git", "-g", "!.git")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kedge-b-") as directory:
        asyncio.run(measure(ToolHarness(Path(directory)), options.files, options.rounds))


async def measure(harness: ToolHarness, files: int, rounds: int) -> None:
    plant(harness.directory, files)
    wait_quiet()
    with noise_told():
        rows: list[list[str]] = []
        for name, theirs, tool, params in (
            ("glob *.py", ("--files", "--sortr", "modified", "-g", "*.py"), GLOB, {"pattern": "*.py"}),
            ("glob src/**/x7*", ("--files", "--sortr", "modified", "-g", "src/**/x7*"), GLOB,
             {"pattern": "src/**/x7*"}),
            ("grep, few", ("-n", "--sortr", "modified", "needle42"), GREP, {"pattern": "needle42"}),
            ("grep, many", ("-n", "--sortr", "modified", "def f1"), GREP, {"pattern": "def f1"}),
            ("grep, *.py", ("-n", "--sortr", "modified", "-g", "*.py", "needle42"), GREP,
             {"pattern": "needle42", "include": "*.py"}),
        ):  # fmt: skip
            base, ours = Samples("rg"), Samples("kedge")
            for _ in range(rounds):
                with base.timed():
                    ripgrep(harness.directory, *theirs)
                with ours.timed():
                    await call(harness, tool, params)
            ratio = ours.p50 / base.p50
            best = ours.best / base.best
            rows.append([name, f"{base.p50 * 1e3:.0f}", f"{ours.p50 * 1e3:.0f}", f"{ratio:.2f}", f"{best:.2f}"])
        print_table(f"{files} files, {rounds} rounds", ["", "rg p50 ms", "ours p50 ms", "x p50", "x best"], rows)
        await edits(harness, rounds)


def plant(root: Path, files: int) -> None:
    (root / ".gitignore").write_text("*.log\n/build/\n")
    for i in range(files):
        where = root / f"src/d{i % 100}/e{i % 7}"
        if i < 700:
            where.mkdir(parents=True, exist_ok=True)
        suffix = (".py", ".ts", ".md", ".log")[i % 4]
        body = f"def f{i}():\n    return {i}\n" * 5 + (f"needle{i % 997}\n" if i % 10 == 0 else "")
        (where / f"x{i}{suffix}").write_text(body)
        os.utime(where / f"x{i}{suffix}", (1_700_000_000 + i, 1_700_000_000 + i))


def ripgrep(directory: Path, *options: str) -> None:
    done = subprocess.run([*RG, *options], cwd=directory, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr


async def call(harness: ToolHarness, tool: Tool, params: dict[str, str]) -> None:
    output = await tool.run(harness, tool.params(**params))
    assert not output.is_error
    assert "No " not in output.content[:3]


async def edits(harness: ToolHarness, rounds: int) -> None:
    """One line in the middle; the baseline reads and writes the same bytes, safely on the disk."""
    path = harness.directory / "large.py"
    lines = [f"value_{i} = {i}  # {'x' * 20}\n" for i in range(130_000)]
    path.write_text("".join(lines))
    plain, ours = Samples("read and write"), Samples("edit")
    for i in range(rounds):
        data = path.read_bytes()
        harness.known_files[str(path)] = compute_digest(data)
        with plain.timed():
            rewrite(path)
        old, new = ("value_65000 =", "changed =") if i % 2 == 0 else ("changed =", "value_65000 =")
        params = EDIT.params(path="large.py", old_string=old, new_string=new)
        with ours.timed():
            await EDIT.run(harness, params)
    size = path.stat().st_size / 1e6
    row = ["edit", f"{plain.p50 * 1e3:.0f}", f"{ours.p50 * 1e3:.0f}", f"{ours.p50 / plain.p50:.1f}"]
    print_table(f"an edit in a file of {size:.1f} MB", ["", "rewrite p50 ms", "edit p50 ms", "x p50"], [row])


def rewrite(path: Path) -> None:
    data = path.read_bytes()
    temporary = path.with_name("large.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


if __name__ == "__main__":
    main()
