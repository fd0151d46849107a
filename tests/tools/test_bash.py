"""`bash`: real commands in a real directory; what they say, how they end, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import re
import select
import tracemalloc

import pytest

from kedge.config.schema import PermissionsConfig
from kedge.engine.processes import process_groups
from kedge.protocol.runs import RunOptions
from kedge.tools.builtin import bash
from kedge.tools.errors import ToolError
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import Allow
from kedge.tools.process import command, spawn
from tests.support.processes import is_alive
from tests.tools.harness import ToolHarness

LIMIT_S = 20.0


async def test_both_channels_come_in_order_and_the_exit_code_is_told(harness: ToolHarness) -> None:
    result = await harness.call("bash", command="echo one; echo two >&2; echo three; exit 7")
    assert result.content == "one\ntwo\nthree\n[exit code 7]"
    assert not result.is_error, "a command that failed is a result like any other"
    assert result.metadata is not None
    assert result.metadata["exit_code"] == 7


async def test_success_says_nothing_of_itself(harness: ToolHarness) -> None:
    assert (await harness.call("bash", command="printf done")).content == "done"
    assert (await harness.call("bash", command="true")).content == "(no output)"


async def test_a_command_that_a_signal_ended_says_which(harness: ToolHarness) -> None:
    assert (await harness.call("bash", command="kill -SEGV $$")).content == "[killed by SIGSEGV]"


async def test_it_runs_in_the_workspace_or_in_a_directory_of_it(harness: ToolHarness) -> None:
    (harness.directory / "sub").mkdir()
    assert (await harness.call("bash", command="pwd")).content == str(harness.directory)
    assert (await harness.call("bash", command="pwd", working_dir="sub")).content == str(harness.directory / "sub")


@pytest.mark.parametrize("given", ["..", "/", "missing", "link"])
async def test_other_directories_are_refused(harness: ToolHarness, given: str) -> None:
    (harness.directory / "link").symlink_to("/")
    with pytest.raises(ToolError):
        await harness.call("bash", command="pwd", working_dir=given)
    with pytest.raises(ToolError):
        await harness.list_access("bash", command="pwd", working_dir=given)


async def test_a_workspace_that_is_gone_is_told(harness: ToolHarness) -> None:
    harness.directory.rmdir()
    with pytest.raises(ToolError, match="could not be started"):
        await harness.call("bash", command="pwd")


async def test_its_input_is_empty_and_it_has_no_terminal(harness: ToolHarness) -> None:
    result = await harness.call(
        "bash", command="cat; read -r x || echo no input; (: </dev/tty) 2>/dev/null || echo no tty"
    )
    assert result.content == "no input\nno tty"


async def test_pagers_editors_and_prompts_wait_for_nobody(harness: ToolHarness) -> None:
    git = "git -c user.name=x -c user.email=x@x -c commit.gpgsign=false"
    script = (
        f"git init -q && touch a && git add a && {git} commit -q -m one && git log --format=%s && {git} commit --amend"
    )
    async with asyncio.timeout(LIMIT_S):
        result = await harness.call("bash", command=script)
    assert result.content.startswith("one\n")
    assert (
        await harness.call("bash", command='echo "$PAGER $EDITOR $TERM $GIT_TERMINAL_PROMPT"')
    ).content == "cat true dumb 0"


async def test_an_editor_that_nobody_could_leave_ends_and_still_does_what_its_commands_say(
    harness: ToolHarness,
) -> None:
    (harness.directory / "x").write_text("a\n")
    (harness.directory / ".x.swp").touch()  # left by another; it would ask what to do
    left = await harness.call("bash", command="vi x; code=$?; printf '\\n%s' $code", timeout=30)
    assert left.content.split()[-1] in ("1", "127"), "127 where there is no vi"
    assert (harness.directory / "x").read_text() == "a\n"
    await harness.call("bash", command="! command -v vim || vim x -c s/a/b/ -c wq; cat x", timeout=30)
    edited = await harness.call("bash", command="command -v vim >/dev/null && cat x || echo b")
    assert edited.content == "b"


async def test_the_callers_environment_reaches_it_without_our_secrets(harness: ToolHarness) -> None:
    harness.env = {
        **harness.env,
        "MINE": "värde",
        "KEDGE_TOKEN": "hush-hush",
        "ODD": "a\0b",
        "A=B": "c",
        "HALF": "\udfff\ud800",
    }
    result = await harness.call("bash", command="env")
    lines = result.content.splitlines()
    assert "MINE=värde" in lines
    assert not [line for line in lines if "hush-hush" in line or line.startswith(("KEDGE_TOKEN", "ODD", "A=B", "HALF"))]


async def test_what_it_says_is_shown_while_it_runs(harness: ToolHarness) -> None:
    gate = harness.directory / "gate"
    os.mkfifo(gate)
    call = asyncio.create_task(harness.call("bash", command="echo first; read -r x < gate; echo second"))
    async with asyncio.timeout(LIMIT_S):
        await harness.said("first\n")
        assert not call.done()
        await asyncio.to_thread(gate.write_text, "go\n")
        assert (await call).content == "first\nsecond"
    assert "".join(harness.apply_plan) == "first\nsecond\n"


async def test_long_output_is_cut_in_the_middle_and_the_whole_is_in_a_file(harness: ToolHarness) -> None:
    result = await harness.call("bash", command="seq 1 100000")
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    head, note, tail = result.content.split("\n\n")
    assert whole.startswith(head)
    assert whole.endswith(tail + "\n")
    saved = next(harness.scratch.iterdir())
    assert str(saved) in note
    assert saved.read_text() == whole
    assert saved.stat().st_mode & 0o777 == 0o600
    shown = await harness.call("view", path=str(saved), offset=50_000, limit=1)
    assert shown.content.splitlines()[0] == " 50000\t50000"
    [access] = await harness.list_access("view", path=str(saved))
    judge = Judge(PermissionsConfig(), RunOptions(), "ask", directory=harness.directory, scratch=harness.scratch)
    assert isinstance(judge.judge("view", access), Allow), "what was put aside for the model needs no leave"


async def test_short_output_needs_no_file(harness: ToolHarness) -> None:
    await harness.call("bash", command="seq 1 100")
    assert not harness.scratch.exists()


async def test_what_watchers_see_live_is_bounded(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bash, "MAX_LIVE_CHARS", 100)
    await harness.call("bash", command="seq 1 10000")
    assert len("".join(harness.apply_plan)) < 200
    assert "not shown while it runs" in harness.apply_plan[-1]


async def test_who_dies_slowly_of_a_timeout_is_not_called_left(harness: ToolHarness) -> None:
    deaf = "(trap '' TERM; sleep 300) & echo $!; sleep 300"  # the shell is gone long before it
    result = await harness.call("bash", command=deaf, timeout=2.0)
    child, note = result.content.splitlines()
    assert note == "[timed out]"
    assert not is_alive(int(child))


async def test_an_end_by_timeout_takes_everything_with_it(harness: ToolHarness) -> None:
    result = await harness.call("bash", command="sleep 300 & echo $!; sleep 300", timeout=2.0)
    child, note = result.content.splitlines()
    assert note == "[timed out]"
    assert not is_alive(int(child))
    assert harness.of_turn == []
    assert result.metadata is not None
    assert result.metadata["timed_out"]


async def test_a_command_that_takes_too_long_goes_on_as_a_job(
    harness: ToolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bash, "BACKGROUND_AFTER_S", 0.2)
    os.mkfifo(harness.directory / "gate")
    result = await harness.call("bash", command="echo begun; read -r x < gate; echo ended; exit 3")
    assert result.metadata is not None
    job_id = result.metadata["job_id"]
    said, note = result.text.split("[")  # a slow shell may not have begun yet
    assert re.match(rf"still running after \d+ s; .* job {job_id}\b", note)
    assert (harness.of_turn, len(harness.kept)) == ([], 1)
    await asyncio.to_thread((harness.directory / "gate").write_text, "go\n")
    seen = await harness.call("job_output", job_id=job_id, wait=LIMIT_S)
    assert f"{said}{seen.text}".startswith(f"begun\nended\n[Job {job_id} has ended (exit code 3)")
    assert harness.kept == []


async def test_what_a_shell_leaves_running_becomes_a_job(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "DRAIN_S", 0.1)
    result = await harness.call("bash", command="sleep 300 & echo $!")
    pid = int(result.text.splitlines()[0])
    assert f"[exit code 0; still running in the background: sleep (process {pid}). It is job " in result.text
    assert result.metadata is not None
    killed = await harness.call("job_kill", job_id=result.metadata["job_id"])
    assert "has ended (exit code 0)" in killed.text
    assert not is_alive(pid)


async def test_one_that_gave_up_its_output_is_a_job_all_the_same(harness: ToolHarness) -> None:
    result = await harness.call("bash", command="setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!")
    assert "still running in the background: " in result.text
    await harness.call("job_kill", job_id=(result.metadata or {})["job_id"])
    assert harness.kept == []


async def test_a_cancelled_call_leaves_its_processes_to_the_engine(harness: ToolHarness) -> None:
    call = asyncio.create_task(harness.call("bash", command="echo ready $$; sleep 300"))
    async with asyncio.timeout(LIMIT_S):
        await harness.said("ready")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert len(harness.of_turn) == 1
    assert await process_groups.end_groups(harness.of_turn) == []
    assert not is_alive(harness.of_turn[0].pgid)


async def test_nothing_runs_before_it_is_on_record(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two the process waits; if we go away instead, so does it."""
    ran = harness.directory / "ran"
    pids: list[int] = []

    async def fails(pid: int) -> object:
        pids.append(pid)
        raise ConnectionError("the store is gone")

    monkeypatch.setattr(harness, "record_process", fails)
    with pytest.raises(ConnectionError):
        await harness.call("bash", command=f"touch {ran}")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.to_thread(wait_for_end, pids[0])
    assert not ran.exists()


def wait_for_end(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([fd], [], [], LIMIT_S)
    finally:
        os.close(fd)


async def test_without_bash_the_plain_shell_does(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bash(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(spawn, "find_program", no_bash)
    monkeypatch.setattr(spawn, "BASHES", ())
    assert (await harness.call("bash", command="echo ${BASH_VERSION:-none}")).content == "none"


@pytest.mark.parametrize("command", ["", "  \n ", "echo a\0b", "echo " + "x" * 200_000])
async def test_commands_that_cannot_be_run_are_refused(harness: ToolHarness, command: str) -> None:
    with pytest.raises(ToolError):
        await harness.call("bash", command=command)
    assert harness.of_turn == []


@pytest.mark.parametrize("char", ["\x00", "\x07", "\x08", "\r", "\x1b", "\x7f", "\x85", "\x9b"])
async def test_a_command_with_a_control_character_is_refused_before_anybody_is_asked(
    harness: ToolHarness, char: str
) -> None:
    for attempt in (harness.list_access, harness.call):
        with pytest.raises(ToolError, match="printf"):
            await attempt("bash", command=f"touch pwned # {char}$ ls -la")
    assert not (harness.directory / "pwned").exists()


async def test_a_command_over_several_lines_with_tabs_runs(harness: ToolHarness) -> None:
    assert (
        await harness.call("bash", command="if true\nthen\n\techo 'é 漢 👩\u200d🚀'\nfi")
    ).content == "é 漢 👩\u200d🚀"


async def test_leave_is_asked_for_the_command_as_it_is(harness: ToolHarness) -> None:
    [access] = await harness.list_access("bash", command="rm -rf build", description="clean up")
    assert (access.kind, access.subject, access.description) == ("execute", "rm -rf build", "run rm -rf build")
    assert access.params == {"command": "rm -rf build", "working_dir": ".", "description": "clean up"}


async def test_a_disk_that_fails_loses_the_file_and_nothing_else(harness: ToolHarness) -> None:
    harness.scratch.write_text("a file in the place of the directory")
    result = await harness.call("bash", command="seq 1 100000")
    assert "The rest could not be saved." in result.content
    assert result.content.endswith("\n100000")


async def test_a_file_that_grows_too_large_says_how_much_it_holds(
    harness: ToolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.tools.process.output.MAX_BYTES", 100_000)
    result = await harness.call("bash", command="seq 1 100000")
    saved = next(harness.scratch.iterdir())
    assert f"Its first {saved.stat().st_size:,} bytes are in {saved}" in result.content
    assert saved.stat().st_size <= 100_000


async def test_the_middle_of_a_huge_line_can_be_read_with_the_command_that_is_named(harness: ToolHarness) -> None:
    text = "".join(f"<{number}>" for number in range(20_000))
    (harness.directory / "long.txt").write_text(f"first\n{text}\nlast\n")
    result = await harness.call("bash", command="cat long.txt")
    named = re.search(r"Line 2 is too long for view: `(.+?)`", result.content)
    assert named is not None
    [access] = await harness.list_access("bash", command=named[1])
    judge = Judge(harness.config.permissions, RunOptions(), "ask", directory=harness.directory, scratch=harness.scratch)
    assert isinstance(judge.judge("bash", access), Allow)
    part = (await harness.call("bash", command=named[1])).content
    assert result.content.partition("\n\n[…")[0] + part == f"first\n{text}"[: len("first\n") + 16_000 - len("first\n")]


async def test_output_that_is_just_too_long_is_saved(harness: ToolHarness) -> None:
    result = await harness.call("bash", command="yes 1234567 | head -n 2001")
    [saved] = harness.scratch.iterdir()
    assert str(saved) in result.content
    assert saved.read_text() == "1234567\n" * 2001


async def test_a_long_duration_is_told(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await harness.call("bash", command="echo a")).content == "a"
    monkeypatch.setattr(command, "LONG_S", 0.0)
    monkeypatch.setattr(bash, "LONG_S", 0.0)
    assert re.fullmatch(r"a\n\[took \d+ s\]", (await harness.call("bash", command="echo a")).content)
    assert re.fullmatch(
        r"a\n\[exit code 3 after \d+ s\]", (await harness.call("bash", command="echo a; exit 3")).content
    )


async def test_a_line_that_is_written_in_pieces_is_shown_whole(harness: ToolHarness) -> None:
    for gate in ("one", "two"):
        os.mkfifo(harness.directory / gate)
    line = "printf 'start\\nline'; read -r x < one; printf ' 18'; read -r x < two; echo ' of 20'"
    started = await harness.call("bash", command=line, description="d", run_in_background=True)
    job_id: str = (started.metadata or {})["job_id"]
    shown = ""
    while not shown.endswith("line"):
        output = await harness.call("job_output", job_id=job_id, wait=LIMIT_S, until="output")
        shown += output.content.partition("\n[")[0]
    assert shown.count("start") == 1
    assert (await harness.call("job_output", job_id=job_id)).content.startswith("(no new output)")
    await asyncio.to_thread((harness.directory / "one").write_text, "go\n")
    more = await harness.call("job_output", job_id=job_id, wait=LIMIT_S, until="output")
    assert more.content.startswith("line 18\n[")
    await asyncio.to_thread((harness.directory / "two").write_text, "go\n")
    ended = await harness.call("job_output", job_id=job_id, wait=LIMIT_S)
    assert ended.content.startswith("line 18 of 20\n[")
    assert (await harness.call("job_output", job_id=job_id)).content.startswith("(no new output)")


async def test_old_files_make_room_for_new_ones(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.tools.process.output.MAX_DIRECTORY_BYTES", 1_000_000)
    for _ in range(5):
        await harness.call("bash", command="seq 1 100000")
    assert len(list(harness.scratch.iterdir())) == 2


async def test_a_hundred_megabytes_cost_bounded_memory(harness: ToolHarness) -> None:
    tracemalloc.start()
    try:
        async with asyncio.timeout(50):
            result = await harness.call(
                "bash", command="yes 'a line of text that is neither short nor long' | head -c 100000000"
            )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000
    assert len(result.content) < 17_000
    saved = next(harness.scratch.iterdir())
    assert saved.stat().st_size == 100_000_000
    saved.unlink()
