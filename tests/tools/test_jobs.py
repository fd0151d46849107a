"""Background jobs: what they say is told once, they are found by id, and they end when told to."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from kedge.engine.processes.reaper import Reaper
from kedge.protocol.errors import NotFound
from kedge.tools.errors import ToolError
from kedge.tools.process import command as process_command
from tests.support.processes import is_alive
from tests.tools.harness import ToolHarness

LIMIT_S = 20.0


async def begin(harness: ToolHarness, command: str, **params: object) -> str:
    result = await harness.call("bash", command=command, run_in_background=True, **params)
    assert result.metadata is not None
    assert result.metadata["job_id"] in result.text
    return result.metadata["job_id"]


async def test_what_a_job_says_is_told_once(harness: ToolHarness) -> None:
    os.mkfifo(harness.directory / "gate")
    # Open for both at once: whoever opens it next never waits for a partner, nor meets the end of a writer that leaves.
    gate = os.open(harness.directory / "gate", os.O_RDWR)
    job_id = await begin(harness, "echo one; read -r x < gate; echo two; read -r x < gate; exit 4")
    first = await harness.call("job_output", job_id=job_id, wait=LIMIT_S, until="output")
    assert first.content.startswith(f"one\n[Job {job_id} is running, for 0 s so far: echo one;")
    nothing = await harness.call("job_output", job_id=job_id)
    assert nothing.content.startswith("(no new output)\n[Job")
    os.write(gate, b"go\n")
    second = await harness.call("job_output", job_id=job_id, wait=LIMIT_S, until="output")
    assert second.content.startswith("two\n[Job")
    os.write(gate, b"go\n")
    last = await harness.call("job_output", job_id=job_id, wait=LIMIT_S)
    assert last.content.startswith(f"(no new output)\n[Job {job_id} has ended (exit code 4)")
    assert last.metadata == {"job_id": job_id, "exit_code": 4}
    os.close(gate)


async def test_a_wait_that_is_up_says_how_it_is(harness: ToolHarness) -> None:
    job_id = await begin(harness, "sleep 300", description="a long nap")
    seen = await harness.call("job_output", job_id=job_id, wait=0.1)
    assert seen.content == f"(no new output)\n[Job {job_id} is running, for 0 s so far: a long nap]"


async def test_nobody_waits_for_news_of_a_job_that_has_ended(harness: ToolHarness) -> None:
    job_id = await begin(harness, "true")
    await harness.call("job_output", job_id=job_id, wait=LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        seen = await harness.call("job_output", job_id=job_id, wait=300, until="output")
    assert f"[Job {job_id} has ended" in seen.content


async def test_a_job_is_ended_with_all_its_processes(harness: ToolHarness) -> None:
    job_id = await begin(harness, "trap '' TERM; sleep 300 & setsid sleep 300 & echo $!; wait")
    seen = await harness.call("job_output", job_id=job_id, wait=LIMIT_S, until="output")
    pid = int(seen.content.splitlines()[0])
    harness.term_s = 0.2
    killed = await harness.call("job_kill", job_id=job_id)
    assert killed.content.startswith(f"[Job {job_id} has ended (killed by SIGKILL)")
    assert not is_alive(pid)
    assert harness.kept == []
    again = await harness.call("job_kill", job_id=job_id)
    assert again.content == killed.content


async def test_the_timeout_of_a_job_ends_it(harness: ToolHarness) -> None:
    job_id = await begin(harness, "sleep 300", timeout=0.2)
    seen = await harness.call("job_output", job_id=job_id, wait=LIMIT_S)
    assert f"[Job {job_id} has ended (timed out)" in seen.content


async def test_long_output_of_a_job_is_cut_each_time_and_the_lines_are_those_of_its_file(harness: ToolHarness) -> None:
    os.mkfifo(harness.directory / "gate")
    job_id = await begin(harness, "seq 1 10000; read -r x < gate; seq 10001 20000")
    [job] = harness.jobs.list()
    async with asyncio.timeout(LIMIT_S):
        while job.command._excerpt.newlines < 10_000:  # noqa: ASYNC110 - all of it, whatever the pieces
            await asyncio.sleep(0)
    first = await harness.call("job_output", job_id=job_id)
    assert "characters were cut out here, from line " in first.content
    await asyncio.to_thread((harness.directory / "gate").write_text, "go\n")
    second = await harness.call("job_output", job_id=job_id, wait=LIMIT_S)
    assert second.content.startswith("10001\n")
    shown = [int(line) for line in second.content.split("\n") if line.isdigit()]
    numbers = re.search(r"from line ([\d,]+) to line ([\d,]+)\.", second.content)
    assert numbers is not None
    first_cut, last_cut = (int(number.replace(",", "")) for number in numbers.groups())
    assert shown == [*range(10_001, first_cut), *range(last_cut + 1, 20_001)]
    saved = next(harness.scratch.iterdir())
    assert saved.read_text() == "".join(f"{number}\n" for number in range(1, 20_001))


async def test_an_unknown_job_brings_those_that_there_are(harness: ToolHarness) -> None:
    with pytest.raises(ToolError, match="there are none; the server may have been restarted"):
        await harness.call("job_output", job_id="beef")
    job_id = await begin(harness, "sleep 300")
    with pytest.raises(ToolError, match=f"the jobs are: {job_id}"):
        await harness.call("job_kill", job_id="beef!")
    with pytest.raises(NotFound):
        await harness.jobs.kill("beef")


async def test_there_are_only_so_many(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_command, "MAX_JOBS", 2)
    await begin(harness, "sleep 300")
    last = await begin(harness, "sleep 300")
    with pytest.raises(ToolError, match="2 running background jobs"):
        await harness.call("bash", command="sleep 300", run_in_background=True)
    assert len(harness.kept) == 2
    assert harness.of_turn == [], "nothing was started"
    await harness.call("job_kill", job_id=last)
    await begin(harness, "sleep 300")


async def test_one_too_many_that_is_at_work_already_is_ended(
    harness: ToolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_command, "MAX_JOBS", 0)
    monkeypatch.setattr("kedge.tools.builtin.bash.BACKGROUND_AFTER_S", 0.1)
    with pytest.raises(ToolError, match="background jobs"):
        await harness.call("bash", command="echo $$ > pid; sleep 300")
    assert not is_alive(int((harness.directory / "pid").read_text()))


async def test_of_those_that_ended_only_the_newest_are_remembered(
    harness: ToolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_command, "MAX_JOBS", 2)
    ids = [await begin(harness, "true") for _ in range(1)]
    for _ in range(4):
        await harness.call("job_output", job_id=ids[-1], wait=LIMIT_S)
        ids.append(await begin(harness, "true"))
    await harness.call("job_output", job_id=ids[-1], wait=LIMIT_S)
    known = [job.id for job in harness.jobs.list()]
    assert known[:2] == [ids[-1], ids[-2]]
    assert len(known) <= 3


async def test_clients_see_what_runs_and_where_it_writes(harness: ToolHarness) -> None:
    job_id = await begin(harness, "echo hello; sleep 300", description="greet")
    [info] = [job.info() for job in harness.jobs.list()]
    assert (info.id, info.command, info.description) == (job_id, "echo hello; sleep 300", "greet")
    assert (info.state, info.exit_code, info.session_id, info.run_id) == ("running", None, "session", "run")
    await harness.call("job_output", job_id=job_id, wait=LIMIT_S, until="output")
    ended = (await harness.jobs.kill(job_id)).info()
    assert (ended.state, ended.exit_code) == ("ended", -15)
    assert Path(ended.output_file).read_text() == "hello\n"


DAEMON = (
    "import os; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); [os.close(n) for n in (0, 1, 2)]"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the mark of a daemon")
async def test_a_daemon_is_seen_in_every_moment_of_its_leaving(harness: ToolHarness) -> None:
    """Between its two forks only a dying process leads to it. Many tries: each meets another moment."""
    reaper = Reaper()
    assert reaper.start()
    try:
        for _ in range(25):
            wait = "import signal; signal.pause()"
            result = await harness.call("bash", command=f"{sys.executable} -S -E -c '{DAEMON}; {wait}'")
            assert "still running in the background" in result.text
            await harness.call("job_kill", job_id=(result.metadata or {})["job_id"])
    finally:
        reaper.close()
