"""What does the read-only sandbox cost, in which commands run that nobody approved?

Goal: `ls` and `git status` take at most 5 ms more at p50 than without a sandbox, with Landlock.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import Samples, noise_told, print_latencies

from kedge.engine.processes.reaper import Reaper
from kedge.tools.process.command import Command
from kedge.tools.process.environment import command_environment
from kedge.tools.sandbox import bubblewrap, landlock
from kedge.tools.sandbox.policy import LaunchSpec
from tests.tools.harness import ToolHarness

ROUNDS = 200
COMMANDS = ("ls", "git status")
MakeSpec = Callable[[], LaunchSpec | None]


def backends(harness: ToolHarness) -> list[tuple[str, MakeSpec]]:
    policy = harness.sandbox.make_read_only_policy
    found: list[tuple[str, MakeSpec]] = [("without a sandbox (baseline)", lambda: None)]
    if landlock.find_problem() is None:
        found.append(("Landlock", lambda: landlock.prepare_read_only(policy())))
    if bubblewrap.find_problem() is None:
        found.append(("bubblewrap", lambda: bubblewrap.prepare_read_only(policy())))
    return found


async def run(harness: ToolHarness, words: str, make_spec: MakeSpec) -> None:
    launch_spec = await asyncio.to_thread(make_spec)
    env = command_environment(harness.env, harness.directory)
    command = await Command.start(harness, words, harness.directory, env, lambda _: None, None, launch_spec)
    await command.shell_exited.wait()
    assert command.exit_code == 0, command.take_output()


async def compare(harness: ToolHarness, words: str, rows: Sequence[tuple[str, MakeSpec]]) -> None:
    samples = [Samples(name) for name, _ in rows]
    for _ in range(ROUNDS):  # in turns: what disturbs the machine disturbs all of them
        for each, (_, make_spec) in zip(samples, rows, strict=True):
            with each.timed():
                await run(harness, words, make_spec)
    print_latencies(f"`{words}`, {ROUNDS} rounds", samples)
    for each in samples[1:]:
        print(f"added by {each.name}: {(each.p50 - samples[0].p50) * 1e3:.1f} ms at p50")


def make_repository(directory: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=directory, check=True)
    for number in range(100):
        (directory / f"file{number}").write_text("text")


async def main() -> None:
    reaper = Reaper()
    reaper.start()  # as the server does
    with noise_told(), tempfile.TemporaryDirectory() as directory:
        harness = ToolHarness(Path(directory))
        harness.env = os.environ  # with the PATH and the home of whoever measures
        make_repository(harness.directory)
        for words in COMMANDS:
            await compare(harness, words, backends(harness))
    reaper.close()


if __name__ == "__main__":
    asyncio.run(main())
