"""The interface in a real terminal, with the real server and a scripted model: what a person sees and types."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from kedge.client import AsyncClient
from kedge.protocol.address import OWNER_FILE
from tests.client.command import Kedge
from tests.e2e.home import Home, asking
from tests.tui.terminal import Terminal

ESC, CTRL_C, ENTER, F2 = "\x1b", "\x03", "\r", "\x1bOQ"
EDITOR = "Ask anything"
MODEL = "openai/fake-model"  # shown when the server is there: one that still starts would outlive its home
TWICE = "Esc again"


@contextlib.asynccontextmanager
async def kedge(
    home: Home, directory: Path, *args: str, env: Mapping[str, str] = {}, **terminal: object
) -> AsyncGenerator[Terminal]:
    command = [sys.executable, "-m", "kedge", *args]
    env = {**home.env, "COLUMNS": "70", "LINES": "20", **env}  # as some shells export them: the terminal knows better
    async with Terminal(command, env=env, cwd=directory, **terminal) as shown:  # pyright: ignore[reportArgumentType]
        yield shown


async def submit(terminal: Terminal, prompt: str) -> None:
    """Typed as a paste, since a terminal tells the two apart."""
    terminal.type(f"\x1b[200~{prompt}\x1b[201~")
    await terminal.shows(prompt[:20])
    terminal.type(ENTER)


async def allow(terminal: Terminal, tool: str, key: str = "a") -> None:
    """Keys count once the dialog was seen for a moment: pressed until it is gone."""
    await terminal.shows(f"Allow {tool}?")
    while f"Allow {tool}?" in terminal.text:
        await asyncio.sleep(0.7)
        terminal.type(key)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await terminal.hides(f"Allow {tool}?")


async def test_a_whole_task_with_a_permission_a_diff_and_an_answer(home: Home, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    calls = (
        '[{"name": "view", "input": {"path": "notes.txt"}}]',
        '[{"name": "edit", "input": {"path": "notes.txt", "old_string": "two", "new_string": "TWO"}}]',
    )
    home.models.on(
        {"tool_calls": calls[0], "text": "I look."},
        {"tool_calls": calls[1], "text": "I change it."},
        {"text": "**Done** with it."},
        prompt="change the notes",
    )
    async with kedge(home, tmp_path, columns=110, lines=40) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, "please change the notes")
        await terminal.shows("Allow edit?", "TWO")
        assert (tmp_path / "notes.txt").read_text() == "one\ntwo\n", "nothing is done before it is allowed"
        await allow(terminal, "edit")
        await terminal.shows("Done with it.", "✓ edit")
        assert (tmp_path / "notes.txt").read_text() == "one\nTWO\n"
        terminal.type(CTRL_C)
        assert await terminal.left() == 0
        assert terminal.is_restored


async def test_keys_typed_ahead_approve_nothing(home: Home, tmp_path: Path) -> None:
    home.models.on(
        {"tool_calls": '[{"name": "bash", "input": {"command": "touch made"}}]', "gate": "ahead"},
        {"text": "The end."},
        prompt="make it",
    )
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, "make it")
        await terminal.shows("Working")
        home.models.release("ahead")
        while "Allow bash?" not in terminal.text:  # somebody types on while the dialog comes
            terminal.type("a")
            await asyncio.sleep(0.02)
        terminal.type("aaas and so on")
        await terminal.shows("aaas and so on", "Allow bash?", "F2 to answer")
        assert not (tmp_path / "made").exists()
        terminal.type(F2)
        await terminal.shows("Enter confirm")
        await allow(terminal, "bash", "d")
        await terminal.shows("aaas and so on")
        await terminal.hides("Working")
        assert not (tmp_path / "made").exists()


async def test_a_prompt_that_is_continued_after_a_pause_approves_nothing(home: Home, tmp_path: Path) -> None:
    home.models.on(
        {"tool_calls": '[{"name": "bash", "input": {"command": "touch made"}}]'}, {"text": "The end."}, prompt="make it"
    )
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, "make it")
        terminal.type("then please ")
        await terminal.shows("Allow bash?", "then please")
        await asyncio.sleep(1.0)  # a pause while one reads the dialog
        for letter in "add tests":
            terminal.type(letter)
            await asyncio.sleep(0.05)
        await terminal.shows("then please add tests", "Allow bash?")
        assert not (tmp_path / "made").exists()
        terminal.type(F2)
        await terminal.shows("Enter confirm")
        terminal.type("\x1b[C")  # the first choice
        await terminal.shows("▸ a")
        terminal.type(ENTER)
        await terminal.shows("The end.", "then please add tests")
        assert (tmp_path / "made").exists()


async def test_a_long_command_is_read_to_its_end_with_the_keyboard(home: Home, tmp_path: Path) -> None:
    command = "\\n".join(["touch first", *(f"echo {number}" for number in range(60)), "echo the-last-line"])
    calls = f'[{{"name": "bash", "input": {{"command": "{command}"}}}}]'
    home.models.on({"tool_calls": calls}, {"text": "The end."}, prompt="say much")
    async with kedge(home, tmp_path, columns=80, lines=24) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, "say much")
        await terminal.shows("Allow bash?", "Needs approval:", "more lines below", "Enter confirm")
        assert "the-last-line" not in terminal.text
        terminal.type("\x1b[6~")  # PgDn
        await terminal.hides("$ touch first")
        terminal.type("\x1b[F")  # End
        await terminal.shows("the-last-line", "above")
        await allow(terminal, "bash", "d")


async def test_what_is_typed_in_one_burst_is_handled_in_order(home: Home, tmp_path: Path) -> None:
    home.models.on({"text": "HEARD-IT"}, prompt="one burst")
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        terminal.type("one burst\rNEXT")
        await terminal.shows("HEARD-IT", "▌ NEXT")
        terminal.type("\x15one burst\r\x10help")  # Ctrl+U; Ctrl+P opens the palette, which gets the rest
        await terminal.shows("Commands", "Show keys and commands")
        terminal.type(ESC)
        await terminal.hides("Commands")
        await terminal.shows(EDITOR)


async def test_ctrl_c_clears_then_quits_and_says_how_to_resume(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(text="A-SESSION"))
        await terminal.shows("A-SESSION")
        await terminal.hides("Working")
        terminal.type("half a thought")
        await terminal.shows("half a thought")
        terminal.type(CTRL_C)
        await terminal.shows(EDITOR, "Cleared")
        terminal.type("\x1b[A")  # Up
        await terminal.shows("half a thought")
        terminal.type(CTRL_C)
        await terminal.shows(EDITOR)
        terminal.type("\x04")  # Ctrl+D
        assert await terminal.left() == 0
        assert re.search(rb"kedge .*-s [0-9a-z]+", terminal.heard)


async def test_esc_twice_puts_queued_prompts_back_into_the_editor(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(gate="never-back", text="FIRST"))
        await terminal.shows("Working")
        await submit(terminal, "the second prompt")
        await terminal.shows("○ the second prompt")
        await submit(terminal, "the third prompt")
        await terminal.shows("○ the third prompt")
        terminal.type(ESC)
        await terminal.shows(TWICE, "return to the editor")
        terminal.type(ESC)
        await terminal.hides("Working")
        await terminal.shows("▌ the second prompt", "the third prompt")


async def test_esc_once_cancels_nothing_and_twice_cancels(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(chunks=5, gate="never", gate_after=3))
        await terminal.shows("w2")
        terminal.type(ESC)
        await terminal.shows(TWICE)
        terminal.type(ESC)
        await terminal.shows("■")
        await terminal.hides("Working")


async def test_prompts_wait_in_the_queue_and_can_be_moved_dropped_and_edited(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(gate="first", text="FIRST"))
        await terminal.shows("Working")
        await submit(terminal, "the second prompt")
        await terminal.shows("the second prompt", "to edit, move or send now")
        await submit(terminal, "the third prompt")
        await terminal.shows("○ the third prompt")
        terminal.type("\x14")  # Ctrl+T
        await terminal.shows("Queued prompts")
        terminal.type("\x1b[1;2B")  # Shift+Down
        terminal.type("d")
        await terminal.hides("second prompt")
        terminal.type(ENTER)
        await terminal.hides("○")
        await terminal.shows("▌ the third prompt")
        home.models.release("first")
        await terminal.shows("FIRST")
        await terminal.hides("Working")


async def test_a_server_killed_in_the_middle_of_an_answer_comes_back_and_nothing_is_lost(
    home: Home, tmp_path: Path
) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(chunks=30, gate="middle", gate_after=15, text="THE-END"))
        await terminal.shows("w14")
        terminal.type("half-typed prompt")
        await terminal.shows("half-typed prompt")
        pid = int((home.data_dir / OWNER_FILE).read_text().split()[1])
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(home.models.wait, held="middle")
        home.models.release("middle")
        await terminal.shows("THE-END", "half-typed prompt")
        await terminal.hides("cannot be reached")
        assert terminal.text.count("THE-END") == 1


async def test_two_interfaces_side_by_side_show_the_same_and_one_answers_for_both(home: Home, tmp_path: Path) -> None:
    home.models.on(
        {"tool_calls": '[{"name": "bash", "input": {"command": "touch made"}}]'},
        {"text": "BOTH-SEE"},
        prompt="make both",
    )
    async with kedge(home, tmp_path) as one:
        await one.shows(EDITOR, MODEL)
        await submit(one, "make both")
        await one.shows("Allow bash?")
        async with kedge(home, tmp_path, "--continue") as other:
            await other.shows("Allow bash?")
            await allow(other, "bash")
            await one.hides("Allow bash?")
            await one.shows("by tui", "BOTH-SEE")
            await other.shows("BOTH-SEE")
            assert (tmp_path / "made").exists()


async def test_a_resize_during_a_stream_keeps_every_word(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path, columns=80, lines=24) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(chunks=40, gate="size", gate_after=20, text="LAST"))
        await terminal.shows("w19")
        terminal.resize(150, 50)
        await terminal.shows("Usage", "w19")  # the sidebar has room now
        home.models.release("size")
        await terminal.shows("LAST", "w38")
        terminal.resize(80, 24)
        await terminal.shows("LAST")
        await terminal.hides("Model\n")


async def test_leaving_a_run_asks_and_says_that_it_goes_on(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(gate="goes-on", text="FINISHED-ALONE"))
        await terminal.shows("Working")
        terminal.type(CTRL_C)
        await terminal.shows("keep running")
        terminal.type("\x1b[A\x1b[A")  # up, up: Leave
        terminal.type(ENTER)
        assert await terminal.left() == 0
        assert terminal.is_restored
    home.models.release("goes-on")
    async with kedge(home, tmp_path, "-C") as again:
        await again.shows("FINISHED-ALONE")


async def test_a_run_that_fails_shows_its_error_and_the_next_prompt_works(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, asking(status=400, error="the model is broken"))
        await terminal.shows("the model is broken")
        await submit(terminal, asking(text="WORKS-AGAIN"))
        await terminal.shows("WORKS-AGAIN")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_restores_the_terminal(home: Home, tmp_path: Path, number: signal.Signals) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        os.kill(terminal.process.pid, number)
        assert await terminal.left() == 128 + number
        assert terminal.is_restored


async def test_a_window_that_is_closed_takes_the_interface_with_it(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL)
        terminal.close()
        assert await terminal.left() == 128 + signal.SIGHUP


async def test_the_terminal_says_whether_it_is_light(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path, background="ffff/ffff/ffff") as light:
        await light.shows(EDITOR, MODEL)
        colours = {light.screen.buffer[y][x].bg for y in range(5) for x in range(5)}
        assert all(int(colour[:2], 16) > 128 for colour in colours if len(colour) == 6), colours
    async with kedge(home, tmp_path, background="0000/0000/0000") as dark:
        await dark.shows(EDITOR, MODEL)
        colours = {dark.screen.buffer[y][x].bg for y in range(5) for x in range(5)}
        assert all(int(colour[:2], 16) < 128 for colour in colours if len(colour) == 6), colours


async def test_suspend_and_resume(home: Home, tmp_path: Path) -> None:
    """Under a shell, as people have it."""
    shell = ["bash", "--norc", "-i"]
    env = {**home.env, "PS1": "shell> "}
    async with Terminal(shell, env=env, cwd=tmp_path) as terminal:
        await terminal.shows("shell>")
        terminal.type(f"{sys.executable} -m kedge\n")
        await terminal.shows(EDITOR, MODEL)
        terminal.type("kept text")
        await terminal.shows("kept text")
        terminal.type("\x1a")
        await terminal.shows("Stopped")
        terminal.type("fg\n")
        await terminal.until(lambda: terminal.heard.count(b"\x1b[?1049h") == 2, "the interface is back")
        await terminal.shows("kept text", "F1 help")
        terminal.type("\x11")  # Ctrl+Q
        await terminal.until(lambda: terminal.heard.count(b"\x1b[?1049l") == 2, "and gone again")


async def test_after_ctrl_z_and_fg_all_of_the_screen_is_there_again(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path) as terminal:
        await terminal.shows(EDITOR, MODEL, "F1 help")
        terminal.type("\x1a")  # Ctrl+Z
        await terminal.until(lambda: terminal.is_restored, "the terminal given back")
        async with asyncio.timeout(30):
            _, status = await asyncio.to_thread(os.waitpid, terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        terminal.screen.reset()  # as it was before the program, which our emulator does not keep
        terminal.process.send_signal(signal.SIGCONT)
        await terminal.shows(EDITOR, MODEL, "F1 help", "Command palette")


@pytest.mark.parametrize(
    ("args", "env", "line"),
    [
        (("-s", "nosuch"), {}, "'nosuch'"),
        (("-m", "bogus"), {}, "'bogus'"),
        (("-m", "nobody/nothing"), {}, "'nobody/nothing'"),
        (("-C", "-s", "nosuch"), {}, "--continue"),
        ((), {"KEDGE_HOST": "nonsense"}, "kedge: "),
        ((), {"KEDGE_DATA_DIR": "/dev/null/x"}, "/dev/null/x"),
    ],
)
async def test_what_cannot_be_opened_is_a_line_and_exit_2(
    home: Home, tmp_path: Path, args: tuple[str, ...], env: dict[str, str], line: str
) -> None:
    async with kedge(home, tmp_path, *args, env=env, columns=200) as terminal:
        await terminal.until(lambda: line.encode() in terminal.heard, line)
        assert await terminal.left() == 2
        assert terminal.heard.count(b"kedge: ") == 1
        assert b"Traceback" not in terminal.heard
        assert not args or b"\x1b[?1049h" not in terminal.heard, "no picture"


async def test_a_session_is_opened_by_the_beginning_of_its_id(home: Home, tmp_path: Path) -> None:
    server = await asyncio.to_thread(home.serve)
    async with await AsyncClient.connect(str(tmp_path), host=f"unix://{home.socket_path}") as client:
        session = await client.create_session()
        await (await client.run(asking(chunks=3), session_id=session.id)).wait()
    async with kedge(home, tmp_path, "-s", session.id[:6], "-m", "openai/other-model") as terminal:
        await terminal.shows("FAKE-ANSWER-OK", "openai/other-model")
    assert await asyncio.to_thread(server.stop) == 0


async def test_a_prompt_on_the_command_line_is_sent_once_even_if_the_server_dies(home: Home, tmp_path: Path) -> None:
    home.models.on({"chunks": 30, "gate": "mid", "gate_after": 15, "text": "THE-END"}, prompt="fix the bug")
    async with kedge(home, tmp_path, "fix the bug") as terminal:
        await terminal.shows("w14")
        pid = int((home.data_dir / OWNER_FILE).read_text().split()[1])
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(home.models.wait, held="mid")
        home.models.release("mid")
        await terminal.shows("THE-END")
        listed = await asyncio.to_thread(Kedge(home, tmp_path), "runs", "--json")
        runs = [json.loads(line) for line in listed.out.splitlines()]
        assert [(run["prompt"], run["attempt"]) for run in runs] == [("fix the bug", 2)]


async def test_a_prompt_on_the_command_line_goes_to_the_session_that_is_continued(home: Home, tmp_path: Path) -> None:
    home.models.on({"text": "FIXED-ONE"}, prompt="prompt-one")
    home.models.on({"text": "FIXED-TWO"}, prompt="prompt-two")
    async with kedge(home, tmp_path, "--", "prompt-one") as terminal:
        await terminal.shows("FIXED-ONE", "tokens")
        terminal.type(CTRL_C)
        await terminal.left()
    async with kedge(home, tmp_path, "-C", "the prompt-two") as terminal:
        await terminal.shows("FIXED-ONE", "FIXED-TWO")


async def test_no_color_sends_no_color(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path, env={"NO_COLOR": "1"}, columns=140) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, "[[fake text='**bold** `code` and ```py\nx = 1\n```']]")
        await terminal.shows("code and")
        terminal.type("\x10")
        await terminal.shows("Type to filter")
        terminal.type(ESC)
        await terminal.hides("Type to filter")
        attributes = re.findall(rb"\x1b\[([0-9;]*)m", bytes(terminal.heard))
        numbers = {int(number) for each in attributes for number in each.split(b";") if number}
        assert numbers <= {0, 1, 2, 3, 4, 7, 9, 22, 23, 24, 27, 29}


async def test_a_terminal_that_is_too_small_says_so_and_loses_no_typed_text(home: Home, tmp_path: Path) -> None:
    async with kedge(home, tmp_path, columns=60, lines=20) as terminal:
        await terminal.shows(EDITOR, MODEL)
        terminal.type("first ")
        await terminal.shows("first")
        terminal.resize(50, 20)
        await terminal.shows("Terminal too small")
        terminal.type("second")
        terminal.resize(60, 20)
        await terminal.shows("first second")
        await terminal.hides("too small")


@pytest.mark.parametrize("term", ["dumb", "unknown"])
async def test_a_dumb_terminal_is_told_what_to_use(home: Home, tmp_path: Path, term: str) -> None:
    async with kedge(home, tmp_path, term=term) as terminal:
        assert await terminal.left() == 2
        await terminal.shows("kedge run PROMPT")
        assert b"\x1b" not in terminal.heard
        assert terminal.heard.count(b"\n") == 1
