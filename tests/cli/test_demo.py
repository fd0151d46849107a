"""`kedge story`: a demo with a real crash."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.cli import main as cli
from kedge.cli.demo import server_process
from kedge.cli.demo.scenario import make_script
from kedge.cli.demo.server_process import Frame, Reader, ServerProcess
from tests.cli.demo_page import PAGE, filled, play, shown

SEEDS = [2, 3, 5]


def test_the_page_shows_what_the_story_really_says() -> None:
    result = play()
    assert (result.returncode, result.stderr) == (0, "")
    assert shown(PAGE.read_text()) == result.stdout
    assert filled(PAGE.read_text(), result.stdout) == PAGE.read_text()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_prints_the_same_log(seed: int) -> None:
    first, second = play("--seed", str(seed)), play("--seed", str(seed))
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == second.stdout
    assert "FAILED" not in first.stdout


def test_another_seed_is_another_story() -> None:
    assert len({make_script(seed) for seed in range(20)}) == 20


def test_a_kept_directory_holds_the_data_and_is_not_played_in_twice(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "story"
    assert play("--dir", str(directory)).returncode == 0
    assert (directory / "data" / "kedge.db").stat().st_size > 0
    again = play("--dir", str(directory))
    assert (again.returncode, again.stdout) == (2, "")
    assert str(directory) in again.stderr


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--seed", "x"], "--seed"),
        (["--seed"], "--seed"),
        (["--frobnicate"], "'--frobnicate'"),
        (["word"], "'word'"),
        (["--dir", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_wrong_arguments_are_one_line(args: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["story", *args]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert names in err


def test_a_server_that_dies_out_of_turn_fails_the_story() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kedge", "story"],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "KEDGE_FAILPOINT": "join.begin=kill"},
    )
    assert result.returncode == 1
    assert "-9" in result.stderr


def test_a_check_that_does_not_hold_fails_the_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader that got an event twice is found out."""
    taken = Reader._take

    def take_twice(self: Reader, frame: Frame) -> None:
        taken(self, frame)
        if frame.seq == 50:
            taken(self, frame)

    monkeypatch.setattr(Reader, "_take", take_twice)
    assert cli.main(["story"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^   FAILED: Anna.* read 74 events: #1 to #73", said, re.MULTILINE)
    assert said.endswith("\n2 checks FAILED.\n")


def test_a_reader_that_missed_a_piece_of_text_says_so() -> None:
    reader = Reader("anna", print)
    delta = {"message_id": "m", "run_id": "r1", "offset": 3, "text": "late"}
    with pytest.raises(AssertionError, match="a piece of text is missing"):
        reader._take(Frame("", "message_delta", None, "created", delta))


def test_the_server_goes_when_its_narrator_is_gone(tmp_path: Path) -> None:
    """Nothing is left running by somebody who kills the story itself."""
    (tmp_path / "workspace").mkdir()
    server = ServerProcess(tmp_path)
    server.call("create_session", title="t")
    assert server.stop() == 0


def test_the_narrator_does_not_wait_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "LIMIT_S", 0.0)
    (tmp_path / "workspace").mkdir()
    server = ServerProcess(tmp_path)
    with pytest.raises(server_process.ServerGone):
        server.read_line()
    assert server.kill() == -signal.SIGKILL


def test_the_command_imports_nothing_from_behind_the_wire() -> None:
    code = "import sys, json, kedge.cli.demo; print(json.dumps([m for m in sys.modules if m.startswith('kedge')]))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    modules: list[str] = json.loads(result.stdout)
    assert not [m for m in modules if m.startswith(("kedge.engine", "kedge.store", "kedge.feed"))]
