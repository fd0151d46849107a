"""What does it cost to run a command, to sandbox it, and to listen to one that says very much?

Goals: a command on record, behind its gate, costs at most 10 ms more than the bare shell, and one that is held at most
25 ms more than that; 100 MB of output cost at most 1.3x the memory of 1 MB.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from measure import MIB, Samples, noise_told, print_latencies, print_table, rss_bytes

from kedge.config.schema import SandboxConfig
from kedge.engine.processes.reaper import Reaper
from kedge.tools.sandbox import bubblewrap, landlock
from kedge.tools.sandbox.sandbox import Sandbox
from tests.tools.harness import ToolHarness

ROUNDS = 200
SIZES = (1, 10, 100)  # MB


async def bare() -> None:
    shell = await asyncio.create_subprocess_exec("bash", "-c", "true", start_new_session=True)
    await shell.wait()


async def compare(harness: ToolHarness) -> None:
    shell, tool = Samples("bash -c true (baseline)"), Samples("the tool")
    for _ in range(ROUNDS):  # in turns: what disturbs the machine disturbs both
        with shell.timed():
            await bare()
        with tool.timed():
            await harness.call("bash", command="true")
    print_latencies(f"one command, {ROUNDS} rounds", [shell, tool])
    print(f"added: {(tool.p50 - shell.p50) * 1e3:.1f} ms at p50, {(tool.best - shell.best) * 1e3:.1f} ms at best")


async def measure_sandbox(harness: ToolHarness) -> None:
    """The same with each sandbox that works here; asking for leave makes one, too, as a run does."""
    bare = harness.sandbox
    harness.env = os.environ  # with the home of whoever measures, and the secrets in it
    configs = [SandboxConfig(mode=backend.NAME) for backend in (landlock, bubblewrap) if backend.find_problem() is None]
    without = Samples("the tool (baseline)")
    rows = [(Samples(f"held by {config.mode}"), config) for config in configs]
    for _ in range(ROUNDS):
        with without.timed():
            await harness.list_access("bash", command="true")
            await harness.call("bash", command="true")
        for samples, config in rows:
            harness.sandbox = Sandbox(
                config=config, directory=harness.directory, scratch=harness.scratch, env=harness.env
            )
            with samples.timed():
                await harness.list_access("bash", command="true")
                await harness.call("bash", command="true")
        harness.sandbox = bare
    print_latencies(f"one command, held, {ROUNDS} rounds", [without, *(samples for samples, _ in rows)])
    for samples, config in rows:
        print(f"added by {config.mode}: {(samples.p50 - without.p50) * 1e3:.1f} ms at p50")


async def listen(harness: ToolHarness) -> None:
    rows: list[list[str]] = []
    base = 0
    for size in SIZES:
        heard = Samples("")
        with heard.timed():
            await harness.call("bash", command=f"yes 'a line of text, neither short nor long' | head -c {size}000000")
        used = rss_bytes()
        base = base or used
        rows.append([f"{size} MB", f"{used / MIB:.1f}", f"{used / base:.2f}", f"{size / heard.best:.0f}"])
        harness.apply_plan.clear()
    print_table("memory after a command's output", ["", "MiB", "x baseline", "MB/s"], rows)


async def main() -> None:
    reaper = Reaper()
    reaper.start()  # as the server does
    with noise_told(), tempfile.TemporaryDirectory() as directory:
        harness = ToolHarness(Path(directory))
        await compare(harness)
        await measure_sandbox(harness)
        await listen(harness)
    reaper.close()


if __name__ == "__main__":
    asyncio.run(main())
