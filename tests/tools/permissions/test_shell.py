"""Plain lines are read as bash reads them; other lines are scanned, in bounded time, whatever they hold."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.tools.permissions.policy import Allow
from kedge.tools.permissions.shell import MAX_CHARS, Line, NotPlain, find_problem, read_plain_line
from kedge.tools.permissions.shell_scanner import read_line
from tests.tools.permissions.bench import Bench
from tests.tools.permissions.scripts import harmless_scripts, hidden_in, quoted, scripts

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# The scanner may be wrong in rare corners, which nothing depends on: the same examples each time.
FIXED = settings(QUICK, derandomize=True)
MANY = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Writes down how it was called, and prints nothing that could be run.
STUB = '#!/bin/sh\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\n\\0"; } >> "$CALLS"\n'
NAMES = ("one", "two", "three", "evil")
TOKENS = (
    *("one", "two", "three", "evil", " ", " ", " ", "\n", ";", "|", "&&", "||", "&", "(", ")", "a", "-x", "1", "é"),
    *("'", '"', "\\", "#", "$", "`", "~", "*", "?", "[", "]", "{", "}", ",", "..", "!", "=", "x=", "+=", "^", "%"),
    *("$x", "${x}", "$(", "))", "$((", "<(", ">/dev/null", "2>&1", "&>/dev/null", "< /dev/null", "<<<", "<<E", "<<'E'"),
    *(
        "\nE\n",
        "E",
        "if ",
        "then ",
        "fi",
        "for i in ",
        "do ",
        "done",
        "while ",
        "case ",
        "esac",
        "time ",
        "function ",
        "{}",
    ),
    *(
        "\\\n",
        "\t",
        '"a b"',
        "'c d'",
        "\\;",
        "$'\\x6f'",
        "[[ ",
        " ]]",
        "in ",
        "else ",
        "one() {",
        "coproc ",
        "@(",
        "!(",
    ),
)


def run_in_bash(bench: Bench, script: str) -> list[list[str]]:
    """The calls of the stubs that bash made, each with its arguments."""
    stubs = bench.home / "stubs"
    if not stubs.exists():
        stubs.mkdir()
        for name in NAMES:
            (stubs / name).write_text(STUB)
            (stubs / name).chmod(0o755)
    calls = bench.home / "calls"
    calls.write_text("")
    subprocess.run(
        ["bash", "-c", script],
        cwd=bench.scratch,
        env={"PATH": f"{stubs}:{os.defpath}", "CALLS": str(calls), "HOME": "/nowhere", "x": "value"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    found = calls.read_bytes().decode("utf-8", "surrogateescape").split("\n\0")
    return [call.split("\0")[:-1] for call in found if call]


def comparable(text: str) -> Line | None:
    """The plain line, unless bash may read the words after `time` in another way: such a line does not run freely."""
    return None if "time" in text and ("!" in text or "=" in text) else plain(text)


def plain(text: str) -> Line | None:
    try:
        return None if find_problem(text) else read_plain_line(text)
    except NotPlain:
        return None


def without_time(words: list[str]) -> list[str]:
    """`time` is a word to the reader, and may be a keyword to the shell."""
    while words[:1] == ["time"]:
        words = words[2:] if words[1:2] == ["-p"] else words[1:]
    return words


def is_literal(line: Line) -> bool:
    return all(word.is_literal for command in line.commands for word in command.words)


@MANY
@given(tokens=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=10))
def test_a_plain_line_runs_exactly_the_commands_that_were_read(bench: Bench, tokens: list[str]) -> None:
    text = "".join([*tokens, " evil"])
    line = comparable(text)
    if line is None:
        return
    ran = run_in_bash(bench, text)
    if is_literal(line) and "$?" not in text:
        read = [without_time([word.shown for word in command.words]) for command in line.commands]
        assert all(call in read for call in ran), (text, ran, read)
    names = {(without_time([word.shown for word in command.words]) or [""])[0] for command in line.commands}
    assert all(call[0] in names or "…" in names for call in ran), (text, ran)


@pytest.mark.long
@settings(max_examples=30_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tokens=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=12))
def test_many_plain_lines_run_exactly_the_commands_that_were_read(bench: Bench, tokens: list[str]) -> None:
    text = "".join([*tokens, " evil"])
    line = comparable(text)
    if line is None or not is_literal(line) or "$?" in text:
        return
    read = [without_time([word.shown for word in command.words]) for command in line.commands]
    assert all(call in read for call in run_in_bash(bench, text)), text


@QUICK
@given(words=st.lists(quoted(), min_size=1, max_size=5))
def test_quotes_are_removed_as_bash_removes_them(bench: Bench, words: list[tuple[str, str]]) -> None:
    text = "one " + " ".join(written for _, written in words)
    line = plain(text)
    if line is None:
        return  # $'…' is not plain
    assert [word.text for word in line.commands[0].words[1:]] == [meant for meant, _ in words]
    assert run_in_bash(bench, text) == [["one", *(meant for meant, _ in words)]]


@pytest.mark.slow
@FIXED
@given(script=scripts(NAMES))
def test_whatever_bash_runs_is_found(bench: Bench, script: str) -> None:
    line = read_line(script)
    shown = " ".join(command.text for command in line.commands) + " ".join(word.shown for word in line.others)
    assert all(call[0] in shown or "…" in shown for call in run_in_bash(bench, script)), (script, shown)


@FIXED
@given(script=harmless_scripts())
def test_scripts_of_reading_commands_run_without_a_question(bench: Bench, script: str) -> None:
    assert bench.outcome(bench.judge(), script) == "allow", script


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(script=hidden_in(harmless_scripts(), "rm -rf src"))
def test_a_deny_rule_finds_a_command_wherever_it_stands(bench: Bench, script: str) -> None:
    assert bench.outcome(bench.judge(allow=["bash"], deny=["bash(rm *)"]), script) in ("deny", "ask"), script
    decision = bench.decide(bench.judge(), script)
    assert not isinstance(decision, Allow) or decision.run_as == "sandboxed", script


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=80))
def test_any_bytes_are_read_without_an_error(raw: bytes) -> None:
    assert isinstance(read_line(raw.decode("utf-8", "surrogateescape")), Line)


@pytest.mark.slow
@pytest.mark.parametrize(
    "token",
    [
        ")",
        ">",
        "x=(a,b",
        "<<a ",
        "$(",
        "`",
        "{",
        "if ",
        "[[ ",
        "[[ a",
        "${a:-",
        '"$(',
        "((",
        "&&",
        "\\",
        "$a",
        '"$a',
        "'",
    ],
)
def test_no_text_takes_long_to_read(token: str) -> None:
    started = time.process_time()
    read_line(token * (MAX_CHARS // len(token)))
    assert time.process_time() - started < 5  # a tenth of it on a quiet machine


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "cat " + "a " * 60_000,
        "env " * 2500 + "ls",
        "xargs " * 2500,
        "sh -c " * 900 + "'ls'",
        "echo " + "$(ls " * 25 + ")" * 25,
        "find . " + "-exec ls {} ; " * 3000,
        "git " + "-c a=b " * 9000 + "push",
        "case a in " + "a) ls;; " * 9000 + "esac",
        "echo {" + "," * 60_000,
        "${" * 32_000,
        "nohup " * 8000 + "ls",
        "cd .; " * 399,
        "$(" * 64_000,
        "$((a" * 30_000,
    ],
    ids=lambda text: text[:20],
)
def test_no_command_takes_long_to_judge(bench: Bench, command: str) -> None:
    denying = bench.judge(allow=["bash"], deny=["bash(git push *)", "view(**/.env)"])
    started = time.process_time()
    assert bench.outcome(bench.judge(), command) in ("ask", "allow")
    assert bench.outcome(denying, command) in ("ask", "allow", "deny")
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", ["x" * (MAX_CHARS + 1), "\udc80", "a\0b", "a\x7fb", "a\u2028b", "ls\x1b[2K", "ls\rrm"])
def test_what_a_person_cannot_see_is_asked_about(bench: Bench, text: str) -> None:
    assert bench.outcome(bench.judge(), text) == "ask"
    assert bench.outcome(bench.judge("auto-edit"), text) == "ask"


def test_a_here_document_that_is_quoted_is_text(bench: Bench, tmp_path: Path) -> None:
    line = plain("cat > notes.md <<'END'\n$(evil) `evil` \\\n one\nEND\none")
    assert line is not None
    assert [command.text for command in line.commands] == ["cat", "one"]
    assert [redirect.target.text for redirect in line.redirects] == ["notes.md"]
