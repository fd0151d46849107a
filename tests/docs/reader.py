"""Somebody who types what the pages say: in a shell that lives from block to block, and at a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import subprocess
from pathlib import Path

from tests.docs.pages import Block, Step
from tests.docs.shell import LIMIT_S, Shell
from tests.docs.stand_ins import TCP
from tests.tui.terminal import Terminal

LEAVE = "Ctrl+C"
AGAIN_S = 5.0  # then whoever wants to leave presses it once more
ANY_PORT = "127.0.0.1:0"
SERVE = f"kedge serve --stop; exec kedge serve --host tcp://{ANY_PORT}"

_LISTENING = re.compile(r"listening on .*tcp://(127\.0\.0\.1:\d+)\n")


class Reader:
    """`words` are what is typed instead of what stands in the pages (`stand_ins`)."""

    def __init__(self, directory: Path, scratch: Path, env: dict[str, str], words: dict[str, str]) -> None:
        self._directory = directory
        self._env = env
        self._words = words
        self._shell = Shell(directory, scratch, env)
        self._left: list[subprocess.Popen[bytes]] = []

    async def play(self, block: Block) -> None:
        if "left running" in block.told:
            for step in block.steps:
                self._leave_running(self._here(step.command.replace(TCP, ANY_PORT)), block.told["left running"])
            return
        if TCP not in self._words and any(TCP in step.command for step in block.steps):
            self._leave_running(SERVE, "listening")  # the page says elsewhere how
        if (answers := block.answers) is not None:
            await self._at_a_terminal(block, answers)
            return
        for step in block.steps:
            self._type(block, step)

    def close(self) -> None:
        self._shell.close()
        if self._left:
            subprocess.run(
                ["kedge", "serve", "--stop"], env=self._env, check=True, capture_output=True, timeout=LIMIT_S
            )
        for process in self._left:
            process.communicate(timeout=LIMIT_S)

    def _type(self, block: Block, step: Step) -> None:
        code, printed = self._shell.type(Step(self._here(step.command), step.printed))
        told = f"{block.place}\n$ {step.command}\n{printed}[exit {code}]"
        if step.printed is None:
            assert code == 0, told
        else:
            assert step.expects().fullmatch(printed), f"{told}\nThe page says:\n{step.printed}"

    async def _at_a_terminal(self, block: Block, answers: list[tuple[str, str]]) -> None:
        """Each line is a command; whatever it asks is answered."""
        used: set[str] = set()
        for line in block.steps[0].command.splitlines():
            command = ["sh", "-c", self._here(line)]
            left = dict(answers)
            async with Terminal(command, env=self._env, cwd=self._directory) as terminal:
                while (seen := await _first_seen(terminal, [*left])) is not None:
                    used.add(seen)
                    if (keys := left.pop(seen)) == LEAVE:
                        await _leave(terminal)
                    else:
                        terminal.type(f"{keys}\r")
                assert await terminal.left() == 0, f"{block.place}\n$ {line}\n{terminal.text}"
        assert used == {seen for seen, _ in answers}, f"{block.place}: nothing asked for the rest"

    def _leave_running(self, command: str, until: str) -> None:
        process = subprocess.Popen(
            ["sh", "-c", command],
            env=self._env,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._left.append(process)
        assert process.stdout is not None
        said = ""
        while f"{until}" not in said or not said.endswith("\n"):
            ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
            piece = os.read(process.stdout.fileno(), 65536).decode() if ready else ""
            assert piece, f"{command}\nnever said {until!r}: {said}"
            said += piece
        if found := _LISTENING.search(said):
            self._words[TCP] = found[1]

    def _here(self, command: str) -> str:
        for there, here in self._words.items():
            command = command.replace(there, here)
        return command


async def _first_seen(terminal: Terminal, texts: list[str]) -> str | None:
    """The first of them that is on the screen; None: the program has left."""

    def seen() -> str | None:
        return next((text for text in texts if text in terminal.text), None)

    leaving = asyncio.create_task(terminal.left())
    showing = asyncio.create_task(terminal.until(lambda: seen() is not None, f"one of {texts}"))
    await asyncio.wait({leaving, showing}, return_when=asyncio.FIRST_COMPLETED)
    has_left = leaving.done()
    for task in (leaving, showing):
        task.cancel()
    await asyncio.gather(leaving, showing, return_exceptions=True)
    return None if has_left else seen()


async def _leave(terminal: Terminal) -> None:
    """As people do: they press it, and again if nothing comes of it. One that is about to end would be killed by it."""
    for _ in range(int(LIMIT_S / AGAIN_S)):
        if terminal.is_raw:
            terminal.type("\x03")
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(terminal.process.wait, AGAIN_S)
            return
