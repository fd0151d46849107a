"""Real bash as the judge's judge: what it runs, the judge has seen; and both make the same of quotes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.tools.permissions.ground import Ground
from kedge.tools.permissions.pieces import Command, Opaque, Piece
from kedge.tools.permissions.script import pieces_of
from tests.tools.permissions.bench import Bench
from tests.tools.permissions.scripts import HARMLESS, harmless_scripts, hidden_in, quoted, scripts

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONG = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# It writes down how it was called, and says nothing that could be run.
STUB = '#!/bin/sh\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\n\\0"; } >> "$CALLS"\n'
# Where the grammar and the shell have disagreed, and a command that should not be run.
TOKENS = (
    *(
        "rm x",
        "; rm x;",
        "$(rm x)",
        "`rm x`",
        "echo ",
        "ls ",
        "cat ",
        "x=",
        "==",
        "a",
        "1",
        "$x",
        "$1",
        "\n",
        " ",
        "\t",
    ),
    *('"', "'", "\\", " #", "#", "$'", '$"', "${x:-", "${x#", "${x/a/", "${x:", "}", "$(", "`", ")", "(", "$((", "))"),
    *("<<E\n", "\nE\n", "<<'E'\n", "<<-E\n", "<<<", "<(", ">(", "2>&1", ">/dev/null", "&&", "||", "|", "&", ";", ";;"),
    *(
        "[[ ",
        " ]]",
        "((",
        "$[",
        "]",
        "[",
        "{",
        "a,b",
        " }",
        "*",
        "~",
        "!",
        "@",
        "-v ",
        "-eq ",
        "x[",
        "f() {",
        "function f ",
    ),
    *("case a in a) ", "esac", "if true; then ", "fi", "for i in 1; do ", "done", "while false; do ", "time ", "eval "),
    *("sh -c '", 'sh -c "', "xargs ", "env ", "command ", "declare ", "export ", "read x;", "test ", "printf %s "),
)
NAMES = ("one", "two", "three", "evil")


def seen_commands(pieces: list[Piece]) -> set[str]:
    found: set[str] = set()
    for piece in pieces:
        if isinstance(piece, Command):
            found.add(piece.words[0].shown)
            found |= seen_commands(list(piece.inner))
    return found


def has_opaque(pieces: list[Piece]) -> bool:
    return any(
        isinstance(piece, Opaque) or (isinstance(piece, Command) and has_opaque(list(piece.inner))) for piece in pieces
    )


@LONG
@given(script=scripts(NAMES))
def test_whatever_bash_runs_is_among_the_pieces(bench: Bench, script: str) -> None:
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
        env={"PATH": f"{stubs}:{os.defpath}", "CALLS": str(calls)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    ran = {call.split("\0")[0].lstrip("\n") for call in calls.read_text().split("\n\0") if call}
    pieces = pieces_of(script, Ground(str(bench.workspace)), frozenset({str(bench.workspace)}))
    assert has_opaque(pieces) or ran <= seen_commands(pieces), script


@QUICK
@given(words=st.lists(quoted(), min_size=1, max_size=5))
def test_quotes_are_removed_as_bash_removes_them(bench: Bench, words: list[tuple[str, str]]) -> None:
    line = " ".join(written for _, written in words)
    shell = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, cwd=bench.scratch, check=True, timeout=20
    )
    (piece,) = pieces_of(f"show {line}", Ground(str(bench.workspace)), frozenset({str(bench.workspace)}))
    if isinstance(piece, Opaque):
        return  # the grammar has its corners, and says so; most of these are read
    assert isinstance(piece, Command)
    by_bash = shell.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    assert [word.text for word in piece.words[1:]] == by_bash == [meant for meant, _ in words]


@QUICK
@given(name=quoted("rm"), path=quoted("/etc/shadow"), reader=quoted("cat"))
def test_quoting_changes_nothing(
    bench: Bench, name: tuple[str, str], path: tuple[str, str], reader: tuple[str, str]
) -> None:
    judge = bench.judge(deny=["bash(rm *)"])
    assert bench.says(judge, f"{name[1]} x") == "refuse"
    assert bench.says(judge, f"{reader[1]} {path[1]}") == "ask"
    assert bench.says(judge, f"{reader[1]} a.txt") == "allow"


@QUICK
@given(script=harmless_scripts())
def test_harmless_scripts_are_not_asked_about(bench: Bench, script: str) -> None:
    assert bench.says(bench.judge(), script) == "allow", script


@settings(max_examples=250, deadline=None)
@given(script=hidden_in(harmless_scripts(), "rm -rf src"))
def test_a_hostile_command_anywhere_in_a_harmless_script_is_never_let_through(bench: Bench, script: str) -> None:
    assert bench.says(bench.judge(), script) == "ask", script
    assert bench.says(bench.judge(deny=["bash(rm *)"]), script) in ("refuse", "ask"), script
    assert bench.says(bench.judge("auto-edit"), script) == "ask", script


@settings(max_examples=250, deadline=None)
@given(raw=st.binary(max_size=60))
def test_bytes_at_random_never_crash_the_judge(bench: Bench, raw: bytes) -> None:
    assert bench.says(bench.judge(), raw.decode("utf-8", "surrogateescape")) in ("ask", "allow")


@settings(max_examples=1000, deadline=None)
@given(tokens=st.lists(st.sampled_from(TOKENS), min_size=2, max_size=9))
def test_tokens_at_random_are_let_through_only_if_bash_runs_nothing_hostile(bench: Bench, tokens: list[str]) -> None:
    """`rm` is a stub in a directory of its own: what was let through must not have called it."""
    script = "".join([*tokens, "rm x"])
    if bench.says(bench.judge(), script) != "allow":
        return
    stubs = bench.home / "hostile"
    if not stubs.exists():
        stubs.mkdir()
        (stubs / "rm").write_text(STUB)
        (stubs / "rm").chmod(0o755)
    calls: Path = bench.home / "hostile-calls"
    calls.write_text("")
    subprocess.run(
        ["bash", "-c", script],
        cwd=bench.workspace,
        env={"PATH": f"{stubs}:{os.defpath}", "CALLS": str(calls)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert calls.read_text() == "", script


def test_the_harmless_commands_are_harmless(bench: Bench) -> None:
    for command in HARMLESS:
        assert bench.says(bench.judge(), command) == "allow"
