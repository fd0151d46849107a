"""`kedge run` as scripts know it: what is printed where, and the exit codes of section 5 of the contract."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kedge.cli.run_options import FLAGS, VALUES
from kedge.client.run_output import RESTARTED
from tests.client.command import Done, Kedge, finish, read_until
from tests.server.process import Server

SUMMARY = re.compile(r"kedge: (?:\d+\.\d s, \d+ tokens in, \d+ out, s|S)ession \w+\n")


def brief(done: Done) -> tuple[int, str, str]:
    """Exit code, standard output, and standard error without the line about time and tokens."""
    return done.code, done.out, SUMMARY.sub("", done.err)


def test_the_answer_is_all_there_is_on_standard_output(kedge: Kedge) -> None:
    done = kedge.run("say the answer")
    assert (done.code, done.out) == (0, "the answer\n")
    assert SUMMARY.fullmatch(done.err)


def test_quiet_is_quiet(kedge: Kedge) -> None:
    done = kedge.run("-q", "say on the way; say the answer")
    assert (done.code, done.out, done.err) == (0, "the answer\n", "")


def test_words_make_one_prompt_and_options_may_stand_between_them(kedge: Kedge) -> None:
    assert brief(kedge.run("say", "one", "-q", "two", "--", "-q")) == (0, "one two -q\n", "")


@pytest.mark.parametrize(
    ("script", "args", "out", "err"),
    [
        ("say first; say second", [], "second\n", "first\n"),
        ("say first; say second", ["--stream"], "first\n\nsecond\n", ""),
        ("retry half an; say whole", [], "whole\n", ""),
        ("retry half an; say whole", ["--stream"], "half an\nwhole\n", f"kedge: {RESTARTED}\n"),
        ("tool ls files; say done", ["--stream"], "done\n", ""),
        ("delegate say theirs; say ours", [], "ours\n", ""),
        ("delegate say theirs; say ours", ["--stream"], "ours\n", ""),
        ("tool ls files", [], "", ""),
        ("sleep 0", ["--stream"], "", ""),
    ],
)
def test_what_is_said_goes_where_it_belongs(kedge: Kedge, script: str, args: list[str], out: str, err: str) -> None:
    assert brief(kedge.run(script, *args)) == (0, out, err)


@pytest.mark.parametrize(
    ("args", "code", "names"),
    [
        (["fail no more paper"], 1, "no more paper"),
        (["say x", "-s", "nowhere"], 2, "'nowhere'"),
        ([], 2, "kedge run"),
        (["  "], 2, "kedge run"),
        (["x", "-m", "nonsense"], 2, "'nonsense'"),
        (["x", "--run-id", "no good"], 2, "--run-id"),
        (["x", "--frob"], 2, "'--frob'"),
        (["x", "--timeout", "soon"], 2, "'soon'"),
        (["x", "--on-busy", "shrug"], 2, "'shrug'"),
        (["x", "-C", "-s", "y"], 2, "--continue"),
        (["x", "-c", "nowhere"], 2, "'nowhere'"),
        (["x", "--host", "nowhere"], 2, "unix:///"),
        (["x", "--model"], 2, "--model"),
        (["x", "--run-id", "a/b"], 2, "--run-id"),
        (["x", "--run-id", ""], 2, "--run-id"),
        (["x", "--max-steps", "0"], 2, "--max-steps"),
        (["x", "--max-steps", "1.5"], 2, "'1.5'"),
        (["x", "--max-cost", "free"], 2, "--max-cost"),
        (["x", "--mode", "bold"], 2, "auto-edit"),
        (["x", "-f", "nowhere.txt"], 2, "nowhere.txt"),
        (["x", "-f", "."], 2, "Is a directory"),
        (["x", "--system-file", "nowhere"], 2, "nowhere"),
        (["x", "--output-schema", "nowhere"], 2, "nowhere"),
        (["x", "--allow", f"bash({'r' * 1001})"], 2, "1000"),
        (["x", "--quiet=yes"], 2, "--quiet"),
        (["x", "--host", "unix:///nowhere.sock", "--connect-timeout", "0.2"], 3, "unix:///nowhere.sock"),
    ],
)
def test_every_failure_is_one_line_and_an_exit_code(kedge: Kedge, args: list[str], code: int, names: str) -> None:
    found, out, err = brief(kedge.run(*args))
    assert (found, out) == (code, ""), err
    assert err.startswith("kedge: ")
    assert names in err
    assert err.count("\n") == 1


def test_a_directory_that_was_removed_is_one_line(kedge: Kedge, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    before = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir({str(tmp_path / 'gone')!r})"
    done = finish(kedge.start("run", "say x", before=before))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--cwd" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_one_line(kedge: Kedge) -> None:
    with Path("/dev/full").open("wb") as full:
        done = finish(kedge.start("run", "say x", "-q", stdout=full.fileno()))
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "No space left" in done.err


def test_help_explains_every_option(kedge: Kedge) -> None:
    done = kedge.run("--help")
    assert (done.code, done.err) == (0, "")
    assert all(spelling in done.out for spelling in [*FLAGS, *VALUES])


def test_a_failed_run_still_says_what_it_said(kedge: Kedge) -> None:
    assert brief(kedge.run("say half; fail no more", "--stream")) == (1, "half\n", "kedge: no more\n")


def test_a_busy_session_refuses_who_asked_for_it(kedge: Kedge, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    busy = kedge.start("run", f"say working; process cat {tmp_path}/gate; say done", "--stream")
    heard = read_until(busy.stdout, b"working").decode()
    refused = kedge.run("-C", "say x", "--on-busy", "reject")
    (tmp_path / "gate").write_text("")
    assert refused.code == 4
    assert "busy with run" in refused.err
    code, rest, _ = brief(finish(busy))
    assert (code, heard + rest) == (0, "working\n\ndone\n")


def test_continue_goes_on_in_the_session_that_was_used_last(kedge: Kedge) -> None:
    first = envelopes(kedge.run("say one", "--json"))[-1]["payload"]["payload"]["session_id"]
    second = envelopes(kedge.run("say two", "--json"))[-1]["payload"]["payload"]["session_id"]
    assert envelopes(kedge.run("-C", "say three", "--json"))[-1]["payload"]["payload"]["session_id"] == second
    kedge.run("-s", first, "say four")
    assert envelopes(kedge.run("-C", "say five", "--json"))[-1]["payload"]["payload"]["session_id"] == first


def test_continue_never_picks_a_child_session(kedge: Kedge, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    os.mkfifo(tmp_path / "begun")
    script = f"delegate process echo > {tmp_path}/begun / process cat {tmp_path}/gate"
    busy = kedge.start("run", script, "--run-id", "parent")
    (tmp_path / "begun").read_text()  # the child's session is now the one with the newest activity
    refused = kedge.run("-C", "say x", "--on-busy", "reject")
    (tmp_path / "gate").write_text("")
    assert "busy with run parent" in refused.err
    assert finish(busy).code == 0


def test_the_same_run_id_is_the_same_run_and_the_same_answer(kedge: Kedge) -> None:
    first = kedge.run("say once", "--run-id", "mine", "--json")
    session_id = envelopes(first)[-1]["payload"]["payload"]["session_id"]
    again = kedge.run("say once", "--run-id", "mine", "-s", session_id, "--json")
    assert (again.code, again.out) == (first.code, first.out)
    other = kedge.run("say other", "--run-id", "mine", "-s", session_id)
    assert (other.code, other.out) == (2, "")


def envelopes(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def test_json_is_the_runs_own_envelopes_and_the_last_is_its_end(kedge: Kedge) -> None:
    done = kedge.run("delegate say theirs; say the answer", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    told = envelopes(done)
    assert {e["payload"]["payload"]["run_id"] for e in told} == {told[0]["payload"]["payload"]["run_id"]}
    assert "message_delta" not in {e["type"] for e in told}
    assert told[-1]["type"] == "run_complete"
    assert told[-1]["payload"]["payload"]["text"] == "the answer"


def test_json_with_stream_has_the_text_as_it_grows(kedge: Kedge) -> None:
    told = envelopes(kedge.run("say one two three", "--json", "--stream"))
    deltas = [e["payload"]["payload"] for e in told if e["type"] == "message_delta"]
    assert "".join(delta["text"] for delta in deltas) == "one two three"
    assert [delta["offset"] for delta in deltas] == [0, 3, 7]


def test_detach_prints_the_run_and_leaves_it_going(kedge: Kedge, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    script = f"process cat {tmp_path}/gate; say done"
    done = kedge.run("--detach", "--run-id", "d", script)
    assert (done.code, done.out, done.err) == (0, "d\n", "")
    (tmp_path / "gate").write_text("")
    assert brief(kedge.run("-C", "say later"))[:2] == (0, "later\n")


def test_nobody_is_asked_and_a_yes_is_for_everything(kedge: Kedge) -> None:
    assert kedge.run("ask rm everything; say done", "--stream", "-q").out == "done\n"
    refused = kedge.run("ask rm everything; say done", "--json")
    allowed = kedge.run("ask rm everything; say done", "--json", "-y")
    assert ["refused" in refused.out, "refused" in allowed.out] == [True, False]
    assert (refused.code, allowed.code) == (4, 0)
    assert "It was: run rm" in refused.err
    assert "-y" not in refused.err


def test_the_environment_goes_along_but_not_the_token(kedge: Kedge) -> None:
    spoil = "import os; os.environb[b'BAD'] = bytes([255])"
    before = f"{spoil}; from kedge.client.environment import caller_environment; print(sorted(caller_environment()))"
    process = kedge.start("--version", before=before, env={"GOOD": "1", "KEDGE_TOKEN": "secret"})
    names = finish(process).out
    assert "'GOOD'" in names
    assert "'BAD'" not in names
    assert "KEDGE_TOKEN" not in names


def test_over_tcp_the_token_is_found_in_the_data_directory(kedge: Kedge, server: Server) -> None:
    assert brief(kedge.run("say hello", "--host", str(server.tcp))) == (0, "hello\n", "")


def test_over_tcp_the_token_is_given_by_file_or_variable(kedge: Kedge, server: Server, tmp_path: Path) -> None:
    elsewhere = {"KEDGE_DATA_DIR": str(tmp_path / "elsewhere"), "KEDGE_HOST": str(server.tcp)}
    (tmp_path / "token").write_text(server.token + "\n")
    (tmp_path / "wrong").write_text("x" * 43)
    refused = kedge.run("say x", env=elsewhere)
    assert (refused.code, refused.out) == (2, "")
    assert "--token-file" in refused.err
    assert kedge.run("say x", "--token-file", str(tmp_path / "wrong"), env=elsewhere).code == 2
    assert kedge.run("say x", "--token-file", str(tmp_path / "missing"), env=elsewhere).code == 2
    assert kedge.run("say x", "--token-file", str(tmp_path / "token"), env=elsewhere).out == "x\n"
    assert kedge.run("say x", env={**elsewhere, "KEDGE_TOKEN": server.token}).out == "x\n"


def test_a_large_answer_and_a_large_prompt_arrive_whole(kedge: Kedge) -> None:
    word = "ä😀e\u0301" * 200_000
    done = kedge.run(stdin=f"say {word}".encode())
    assert (done.code, done.out) == (0, f"{word}\n")
    done = kedge.run("--stream", stdin=f"say {word}".encode())
    assert (done.code, done.out) == (0, f"{word}\n")


def test_a_prompt_that_is_too_long_is_refused(kedge: Kedge) -> None:
    done = kedge.run(stdin=b"x" * (4 * 1024 * 1024 + 1))
    assert done.code == 2
    assert "4 MiB" in done.err


@pytest.mark.parametrize("closed", [[1], [2], [0], [0, 1, 2]])
def test_closed_descriptors_change_nothing_else(kedge: Kedge, closed: list[int]) -> None:
    """Without care a socket gets the number 1, and the answer is sent to the server."""
    redirections = " ".join(f"{fd}>&-" for fd in closed)
    command = f"exec {shlex.quote(sys.executable)} -m kedge run 'say hello' {redirections}"
    process = subprocess.Popen(
        ["sh", "-c", command],
        cwd=kedge.workspace,
        env=kedge.place.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    done = finish(process)
    assert done.code == 0
    assert done.out == ("" if 1 in closed else "hello\n")


def test_files_and_options_reach_the_run(kedge: Kedge) -> None:
    (kedge.workspace / "notes.md").write_text("# Notes")
    (kedge.workspace / "shot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (kedge.workspace / "system.md").write_text("be brief")
    (kedge.workspace / "schema.json").write_text('{"type": "object"}')
    args = ["-f", "notes.md", "--file=shot.png", "--system-file", "system.md", "--output-schema", "schema.json"]
    args += ["--max-steps", "7", "--max-cost", "$0.50", "--mode", "plan", "--allow", "bash(ls)", "--allow", "bash(cat)"]
    done = kedge.run("say seen", "--run-id", "r", *args, "--json", "-q")
    assert done.code == 0, done
    messages = [json.loads(line)["payload"]["payload"] for line in done.out.splitlines() if '"message"' in line]
    user = next(message for message in messages if message.get("role") == "user")
    assert [part["type"] for part in user["parts"]] == ["text", "file", "image"]
    assert [part["name"] for part in user["parts"][1:]] == ["notes.md", "shot.png"]
    assert kedge.run("say seen", "--run-id", "r", *args, "-q").out == "seen\n"  # the same body
    other = kedge.run("say seen", "--run-id", "r", *args[:-2], "-q")
    assert (other.code, "another body" in other.err) == (2, True)


def test_a_text_file_alone_is_a_prompt_and_an_image_is_not(kedge: Kedge) -> None:
    (kedge.workspace / "task.md").write_text("do it")
    (kedge.workspace / "shot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert kedge.run("-f", "task.md").code == 0
    assert kedge.run("-f", "shot.png").code == 2


def test_what_a_provider_says_does_not_drive_the_terminal(kedge: Kedge) -> None:
    result = kedge.run("fail paper is \x1b[31mred\x07")
    assert result.code == 1
    assert "kedge: paper is \u241b[31mred\u2407\n" in result.err


def test_a_yes_that_plan_mode_overrides_is_mentioned(kedge: Kedge) -> None:
    done = kedge.run("say hello", "--mode", "plan", "-y")
    assert (done.code, done.out) == (0, "hello\n")
    assert "-y has no effect" in done.err
    assert kedge.run("say hello", "--mode", "plan", "-y", "-q").err == ""
