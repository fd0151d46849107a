"""`kedge` itself: quick to start, and one line when something is wrong."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.cli import main as cli
from kedge.cli.output import print_error
from kedge.version import VERSION

BASELINE = "import sys; print(*sys.modules)"
AFTER_VERSION = "import sys; from kedge.cli.main import main; main(['--version']); print(*sys.modules)"

TOO_HEAVY = {"argparse", "asyncio", "importlib.metadata", "json", "msgspec", "sqlite3", "subprocess", "typing"}


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False, timeout=30)


def kedge(*args: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "kedge", *args)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A subcommand that does what its arguments say, known to the table as `act`."""
    (tmp_path / "acting_command.py").write_text(
        "def run(argv):\n"
        "    if argv == ['raise']: raise ValueError('first line\\nsecond line')\n"
        "    if argv == ['interrupt']: raise KeyboardInterrupt\n"
        "    print(argv)\n"
        "    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "act", ("acting_command", "acts as told"))
    return "act"


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version_is_one_line(flag: str) -> None:
    result = kedge(flag)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"kedge {VERSION}\n", "")


def test_installed_script_is_the_same_command() -> None:
    script = Path(sys.executable).with_name("kedge")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout == f"kedge {VERSION}\n"


def test_version_imports_only_its_own_four_modules() -> None:
    before = set(python("-c", BASELINE).stdout.split())
    after = set(python("-c", AFTER_VERSION).stdout.splitlines()[-1].split())
    assert after - before == {"kedge", "kedge.cli", "kedge.cli.main", "kedge.version"}


def test_version_as_a_module_imports_nothing_heavy() -> None:
    imported = python("-X", "importtime", "-m", "kedge", "--version").stderr
    names = {line.rsplit("|", 1)[-1].strip() for line in imported.splitlines()}
    assert "kedge.cli.main" in names
    assert not names & TOO_HEAVY


def test_help_names_every_command_and_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "acts as told" in out
    assert all(name in out for name in (command, "--version", "--help", "--debug"))


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["frobnicate"], "'frobnicate'"),
        (["two\nlines"], r"'two\nlines'"),
        (["--frobnicate"], "'--frobnicate'"),
        (["--mode", "odd"], "plan, ask, auto-edit, auto or yolo"),
        (["-y", "--mode", "plan"], "--yolo"),
        (["-C"], "kedge run PROMPT"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_do(
    args: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert names in err
    assert err.startswith("kedge: ")
    assert err.endswith("See 'kedge --help'.\n")
    assert err.count("\n") == 1


def test_without_a_command_and_a_terminal_there_is_one_useful_line() -> None:
    result = kedge()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "kedge run" in result.stderr


@pytest.mark.parametrize("args", [["--host", "tcp://127.0.0.1:1", "runs", "-n", "1"], ["-y", "run", "hello"]])
def test_a_command_behind_its_options_is_told_where_they_stand(args: list[str]) -> None:
    result = kedge(*args)
    name = next(word for word in args if word in cli.COMMANDS)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"kedge {name} OPTION" in result.stderr


def test_what_an_option_names_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    result = kedge("-c", str(tmp_path / "runs"), "--mode", "odd")
    assert "'odd'" in result.stderr
    assert "'odd'" in kedge("-c", "runs", "--mode", "odd").stderr


def test_a_command_gets_its_arguments_and_gives_the_exit_code(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--flag", "word"]) == 7
    assert capsys.readouterr().out == "['--flag', 'word']\n"


def test_debug_is_taken_out_anywhere_before_a_double_dash(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "word", "--debug", "--", "--debug"]) == 7
    assert capsys.readouterr().out == "['word', '--', '--debug']\n"


def test_an_error_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "raise"]) == 1
    assert capsys.readouterr().err == "kedge: first line second line (--debug shows the traceback)\n"


def test_an_error_with_debug_keeps_its_traceback(command: str) -> None:
    with pytest.raises(ValueError, match="first line"):
        cli.main([command, "raise", "--debug"])


def test_interrupt_is_silent(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "interrupt"]) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_left_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        result = subprocess.run(
            [sys.executable, "-m", "kedge", "--version"], stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=30
        )
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "kedge", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=30,
        )
    assert result.returncode == 1
    assert result.stderr.startswith("kedge: [Errno 28]")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "printed"),
    [("no such thing", "No such thing"), ("git failed", "git failed"), ("kedge.toml is bad", "kedge.toml is bad")],
)
def test_a_name_at_the_start_of_an_error_stays_as_it_is(
    text: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_error(text, 2) == 2
    assert capsys.readouterr().err == f"kedge: {printed}\n"


@pytest.mark.parametrize("args", [["doctor", "extra"], ["completion", "foo"], ["run", "--run-id", "a b", "hello"]])
def test_an_argument_that_means_nothing_is_named(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(args) == 2
    assert repr(next(word for word in args if word in ("extra", "foo", "a b"))) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["sesion"], "session"),
        (["-y", "sesion"], "session"),
        (["xyzzy"], "kedge -- PROMPT"),
        (["fix the bug", "and more"], "quotes"),
        (["--", " "], "empty"),
        (["fix the bug"], "needs a terminal"),
        (["--", "fix"], "needs a terminal"),
        (["--", "runs"], "needs a terminal"),
    ],
)
def test_a_word_that_is_no_command_and_a_prompt_without_a_terminal_are_errors(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert cli.main(args) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["runs", "sessions"])
def test_options_in_front_of_a_command_are_refused_with_the_right_order(name: str) -> None:
    result = kedge("--host", "tcp://127.0.0.1:1", name)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"kedge {name} OPTION" in result.stderr


@pytest.mark.parametrize(("word", "hint"), [("sesions", "sessions"), ("rnus", "runs"), ("", "empty"), ("zzz", "--")])
def test_a_word_that_is_no_command_is_refused_with_a_hint(word: str, hint: str) -> None:
    result = kedge(word)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert hint in result.stderr
