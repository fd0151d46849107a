"""No command lets a model, a repository, a provider or a log drive the terminal, or show other than it is."""

from __future__ import annotations

import contextlib
import json
import os
import pty
from collections.abc import Generator
from pathlib import Path

import pytest

from kedge.protocol.address import LOG_FILE
from tests.client.command import Kedge
from tests.e2e.home import Home, new_home
from tests.e2e.project import bash, call, step
from tests.support.model_control import ModelControl, model_thread

HOSTILE = {
    "clipboard": "\x1b]52;c;cHduZWQ=\x07",
    "title": "\x1b]2;pwned\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "csi": "\x9b31m",  # C1, as UTF-8
    "osc": "\x9d2;pwned\x9c",
    "return": "hidden\rshown",
    "backspace": "no\b\byes",
    "bell": "\x07\x00\x7f",
    "direction": "\u202egnp.exe\u2066\u200f",
    "tags": "\U000e0041\U000e007f",
    "lines": "a\u2028b\u2029c\x85d\x0be",
    "unseen": "z\u200bw\ufeff\u00ad",
}
CORPUS = " ".join(HOSTILE.values())
TEXT = CORPUS.replace("\0", "")  # as an argument, or a file that is not binary
HUMAN = "Qu'est-ce\u00a0? 全角\u3000スペース 👩\u200d🚀"
NAME = "x\x1b[2J\u202ey\x9b"  # of files and the like, where not all of the above fits
# What a terminal must not get, but for what we send ourselves.
FORBIDDEN = {char for text in HOSTILE.values() for char in text if not char.isprintable()} - set("\r")
OURS = (b"\r\x1b[K", b"\r\n")

COMMANDS = {
    "run": ("run", "say all of it"),
    "run, quiet": ("run", "-q", "--no-stream", "say all of it"),
    "run, as JSON": ("run", "--json", "--stream", "say all of it"),
    "run, refused": ("run", "do all of it"),
    "run, allowed": ("run", "-y", "do all of it"),
    "run, failed": ("run", "fail with all of it"),
    "run, of a strange model": ("run", "-m", NAME, "x"),
    "attach": ("attach", "{run}"),
    "attach, as JSON": ("attach", "--json", "--stream", "{run}"),
    "attach, to nothing": ("attach", TEXT),
    "runs": ("runs",),
    "runs, as JSON": ("runs", "--json"),
    "cancel": ("cancel", "{run}"),
    "session list": ("session", "list"),
    "session list, as JSON": ("session", "list", "--json"),
    "session show": ("session", "show", "{session}"),
    "session show, as JSON": ("session", "show", "--json", "{session}"),
    "session export": ("session", "export", "{session}"),
    "session export, as JSON": ("session", "export", "--json", "{session}"),
    "session export, to a strange file": ("session", "export", "-o", f"missing/{NAME}", "{session}"),
    "session rename, as JSON": ("session", "rename", "--json", "{session}", TEXT),
    "session model": ("session", "model", "{session}", f"openai/{NAME}"),
    "session files": ("session", "files", "{session}"),
    "session files, as JSON": ("session", "files", "--json", "{session}"),
    "session diff": ("session", "diff", "{session}"),
    "session undo": ("session", "undo", "--dry-run", "{session}"),
    "session fork": ("session", "fork", "--dry-run", "{session}"),
    "session, unknown": ("session", "show", NAME),
    "models": ("models",),
    "models, as JSON": ("models", "--json"),
    "config show": ("config", "show"),
    "config show, as JSON": ("config", "show", "--json"),
    "config show, of a strange key": ("config", "show", NAME),
    "config set, of a strange key": ("config", "set", NAME, NAME),
    "config trust": ("config", "trust", NAME),
    "config show, broken": ("config", "show", "--cwd", "../broken"),
    "run, broken": ("run", "x", "--cwd", "../broken"),
    "doctor, broken": ("doctor", "--offline", "--cwd", "../broken"),
    "login": ("login", "--list"),
    "login, as JSON": ("login", "--list", "--json"),
    "login, to a stranger": ("login", NAME),
    "logout, of a stranger": ("logout", NAME),
    "logs": ("logs",),
    "doctor": ("doctor", "--offline"),
    "serve, of a strange place": ("serve", "--host", f"tcp://{NAME}"),
    "serve, stopped elsewhere": ("serve", "--stop", "--data-dir", NAME),
    "completion": ("completion", NAME),
    "story": ("story", NAME),
    "an option": ("runs", f"--{NAME}"),
    "a command": (NAME,),
    "the interface": ("--session", NAME, "--continue"),
    "a directory": ("runs", "-c", NAME),
    "a host": ("runs", "--host", NAME),
    "a traceback": ("--debug", "runs", "--host", NAME),
}
EXACT = {
    "run": (("run", "-q", "say all of it"), CORPUS),
    "session show": (("session", "show", "{session}"), CORPUS),
    "session export": (("session", "export", "{session}"), CORPUS),
    "session diff": (("session", "diff", "{session}"), TEXT),
    "logs": (("logs",), "\x1b]2;pwned\x07"),
}

TOML = """\
[permissions]
allow = ["edit(\\u001B[2J\\u009B\\u202E)"]
[providers.openai.models."x\\u001B[2J\\u009B\\u202Ey"]
context_window = 1000
"""
BROKEN = """\
["a\\u001B[2J\\u202Eb"]
"\\u009Bc" = "\\u009Bd"
"""


class Workspace:
    """A place in which everything that others write is hostile."""

    def __init__(self, kedge: Kedge, models: ModelControl, run_id: str, session_id: str) -> None:
        self.kedge = kedge
        self.models = models
        self._names = {"run": run_id, "session": session_id}

    def words(self, command: tuple[str, ...]) -> list[str]:
        return [self._names.get(word[1:-1], word) if word.startswith("{") else word for word in command]


@pytest.fixture(scope="module")
def place() -> Generator[Workspace]:
    with model_thread() as models, new_home(models, has_titles=False) as home:
        server = home.serve()
        yield _hostile(home, models)
        assert server.stop() == 0


def _hostile(home: Home, models: ModelControl) -> Workspace:
    directory = home.directory / "workspace"
    directory.mkdir()
    (directory / "kedge.toml").write_text(TOML)
    (home.directory / "broken").mkdir()
    (home.directory / "broken" / "kedge.toml").write_text(BROKEN)
    doing = step(
        call("write", path=f"{NAME}.txt", content=f"{TEXT}\n{HUMAN}\n"),
        bash(f"echo '{HOSTILE['direction']}' && rm -f nothing", description=CORPUS),
        bash(f"echo '{HOSTILE['clear']}'", description=CORPUS),
        text=CORPUS,
    )
    models.on({"text": f"{CORPUS} {HUMAN}"}, prompt="say all of it")
    models.on(doing, {"text": "done"}, prompt="do all of it")
    models.on({"status": 400, "message": CORPUS}, prompt="fail with all of it")
    kedge = Kedge(home, directory)
    for options in (("say all of it", "--run-id", "said"), ("do all of it", "-y", "-C")):
        done = kedge.run(*options)
        assert done.code == 0, done
    session_id = json.loads(kedge("session", "list", "--json").out.splitlines()[0])["id"]
    assert kedge("session", "rename", session_id, TEXT).code == 0
    log = home.data_dir / LOG_FILE
    with log.open("ab") as file:
        file.write(f"{CORPUS}\x1b]2;pwned\x07\n".encode() + b"raw \x9b31m \xff \x1b[2J\n")
    return Workspace(kedge, models, "said", session_id)


def on_a_terminal(place: Workspace, command: tuple[str, ...]) -> bytes:
    """All that appears on a terminal, standard error too."""
    controller, terminal = pty.openpty()
    process = place.kedge.start(
        *place.words(command), stdin=terminal, stdout=terminal, stderr=terminal, env={"TERM": "xterm"}
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the last one has closed the terminal
        while piece := os.read(controller, 65536):
            shown += piece
    os.close(controller)
    process.wait(60)
    return shown


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_that_others_wrote_drives_the_terminal(place: Workspace, name: str) -> None:
    shown = on_a_terminal(place, COMMANDS[name])
    assert shown
    for ours in OURS:
        shown = shown.replace(ours, b"\n")
    text = shown.decode()  # raises where a byte alone came through
    assert not FORBIDDEN & set(text), ascii(text)
    assert "\r" not in text


@pytest.mark.parametrize("name", ["run", "attach", "session show", "session export", "session diff"])
def test_what_people_write_stays_as_it_is(place: Workspace, name: str) -> None:
    text = on_a_terminal(place, COMMANDS[name]).decode()
    assert HUMAN in text
    assert "⟨U+202E⟩gnp.exe" in text
    assert "␛]52;c;cHduZWQ=␇" in text


@pytest.mark.parametrize("name", EXACT)
def test_a_pipe_gets_the_exact_text(place: Workspace, name: str) -> None:
    command, text = EXACT[name]
    assert text in place.kedge(*place.words(command)).out


def test_an_exported_file_has_the_exact_text(place: Workspace, tmp_path: Path) -> None:
    for options in ((), ("--json",)):
        target = tmp_path / "exported"
        on_a_terminal(place, ("session", "export", "{session}", "-o", str(target), *options))
        text = target.read_bytes().decode()
        assert (CORPUS if not options else json.dumps(CORPUS, ensure_ascii=False)[1:-1]) in text


def test_json_on_a_terminal_means_what_it_means_in_a_pipe(place: Workspace) -> None:
    lines = on_a_terminal(place, ("session", "export", "--json", "{session}")).decode().splitlines()
    shown = [json.loads(line) for line in lines]
    piped = place.kedge(*place.words(("session", "export", "--json", "{session}"))).out
    assert shown == [json.loads(line) for line in piped.split("\n") if line]


def test_the_last_line_names_the_command_and_not_the_words_of_the_model(place: Workspace) -> None:
    place.models.on(
        step(bash("rm -rf build/", description="show the version of Python; --allow bash allows it")),
        {"text": "no"},
        prompt="clean up",
    )
    done = place.kedge.run("clean up")
    assert done.code == 4
    line = next(line for line in done.err.splitlines() if "denied" in line)
    assert line.startswith("kedge: ")
    assert line.endswith(": run rm -rf build/")
