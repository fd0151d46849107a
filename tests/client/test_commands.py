"""The commands beside `kedge run`, as processes, against a real server."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kedge.cli.main import COMMANDS
from tests.client.command import Kedge, finish, read_until
from tests.server.process import Place


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def detach(kedge: Kedge, script: str, *args: str) -> str:
    done = kedge.run("--detach", *args, script)
    assert done.code == 0, done
    return done.out.strip()


def test_runs_lists_this_workspace_the_newest_first(kedge: Kedge) -> None:
    kedge.run("--run-id", "first", "say one")
    kedge.run("--run-id", "second", "fail no")
    done = kedge("runs")
    assert done.code == 0
    head, *rows = [line.split() for line in done.out.splitlines()]
    assert head == ["RUN", "STATE", "STARTED", "TIME", "COST", "SESSION", "PROMPT"]
    assert [row[:2] for row in rows] == [["second", "failed"], ["first", "completed"]]
    assert [run["run_id"] for run in lines(kedge("runs", "--json", "--state", "failed").out)] == ["second"]
    assert [run["run_id"] for run in lines(kedge("runs", "--json", "-n", "1").out)] == ["second"]


def test_runs_can_show_only_what_is_open(kedge: Kedge) -> None:
    kedge.run("say done")
    run_id = detach(kedge, "hang")
    assert [run["run_id"] for run in lines(kedge("runs", "--open", "--json").out)] == [run_id]
    assert kedge("cancel", "-q", run_id).code == 0
    assert kedge("runs", "--open").out == ""


@pytest.mark.parametrize("args", [["-n", "0"], ["-n", "x"], ["--state", "odd"], ["what"], ["--odd"]])
def test_runs_refuses_odd_arguments_in_one_line(kedge: Kedge, args: list[str]) -> None:
    done = kedge("runs", *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "kedge runs --help" in done.err


def test_attach_tells_a_run_that_has_ended_from_its_first_word(kedge: Kedge) -> None:
    run_id = detach(kedge, "say first; say second")
    assert (kedge("attach", run_id, "-q").out, kedge("attach", run_id, "-q").code) == ("second\n", 0)
    assert kedge("attach", run_id, "--stream").out == "first\n\nsecond\n"
    told = lines(kedge("attach", run_id, "--json").out)
    assert told[0]["type"] == "run"
    assert told[-1]["type"] == "run_complete"


def test_attach_follows_a_run_to_its_end_and_says_how_it_ended(kedge: Kedge) -> None:
    run_id = detach(kedge, "say begun; hang")
    attached = kedge.start("attach", "--stream", run_id)
    said = read_until(attached.stdout, b"begun\n")
    assert kedge("cancel", run_id).out == f"Canceled {run_id}\n"
    done = finish(attached)
    assert (done.code, said + done.out.encode(), done.err) == (130, b"begun\n", "")
    failed = kedge("attach", detach(kedge, "fail it is broken"))
    assert (failed.code, failed.out, failed.err) == (1, "", "kedge: it is broken\n")


def test_leaving_attach_does_not_stop_the_run(kedge: Kedge) -> None:
    run_id = detach(kedge, "say begun; hang")
    attached = kedge.start("attach", "--stream", run_id)
    read_until(attached.stdout, b"begun\n")
    attached.send_signal(signal.SIGINT)
    done = finish(attached)
    assert done.code == 130
    assert run_id in done.err
    assert [run["run_id"] for run in lines(kedge("runs", "--open", "--json").out)] == [run_id]
    kedge("cancel", run_id)


def test_attach_names_a_run_that_is_not_there(kedge: Kedge) -> None:
    done = kedge("attach", "nobody")
    assert (done.code, done.out) == (2, "")
    assert "'nobody'" in done.err
    assert "kedge runs" in done.err
    assert kedge("attach").code == 2


def test_cancel_takes_a_run_a_session_or_the_one_that_is_busy(kedge: Kedge) -> None:
    first = detach(kedge, "hang")
    assert kedge("cancel", first).out == f"Canceled {first}\n"
    second = detach(kedge, "hang")
    session = lines(kedge("runs", "--json", "-n", "1").out)[0]["session_id"]
    third = detach(kedge, "say never", "-s", session)
    assert kedge("cancel", session).out == f"Canceled {second}\nCanceled {third}\n"
    fourth = detach(kedge, "hang")
    assert kedge("cancel").out == f"Canceled {fourth}\n"
    assert {run["state"] for run in lines(kedge("runs", "--json").out)} == {"cancelled"}


def test_cancel_with_nothing_to_cancel_says_so_and_poisons_nothing(kedge: Kedge) -> None:
    done = kedge("cancel")
    assert (done.code, done.out, done.err.count("\n")) == (0, "", 1)
    kedge.run("--run-id", "over", "say done")
    assert kedge("cancel", "over").code == 0
    assert kedge.run("-q", "say fine").out == "fine\n"
    assert kedge("cancel", "nobody").code == 2


def test_cancel_without_a_name_asks_which_when_several_are_busy(kedge: Kedge) -> None:
    runs = [detach(kedge, "hang"), detach(kedge, "hang")]
    done = kedge("cancel")
    assert done.code == 2
    assert done.err.startswith("kedge: 2 sessions")
    for run_id in runs:
        assert kedge("cancel", run_id).code == 0


def test_session_list_show_rename_export_and_delete(kedge: Kedge, tmp_path: Path) -> None:
    kedge.run("say hello ``` there")
    session = lines(kedge("session", "list", "--json").out)[0]["id"]
    assert kedge("session", "rename", session[:8], "A", "new", "title").code == 0
    assert kedge("session", "list", "new title").out.splitlines()[1].endswith("A new title")
    assert kedge("session", "list", "nothing like it").out == ""
    assert "## assistant\n\nhello ``` there\n" in kedge("session", "show", session).out
    target = tmp_path / "out.md"
    assert kedge("session", "export", session, "-o", str(target)).code == 0
    assert target.read_text().startswith("# A new title\n\n## user\n\nsay hello")
    failed = kedge("session", "export", session, "-o", str(tmp_path / "nowhere" / "out.md"))
    assert (failed.code, failed.err.count("\n")) == (2, 1)
    assert str(tmp_path / "nowhere" / "out.md") in failed.err
    exported = lines(kedge("session", "export", session, "--json").out)
    assert [message["role"] for message in exported] == ["user", "assistant"]
    assert kedge("session", "delete", session).code == 0
    assert kedge("session", "list").out == ""


def test_titles_keep_the_spaces_and_joiners_of_every_script_and_lose_what_drives_a_terminal(kedge: Kedge) -> None:
    kedge.run("say hello")
    session = lines(kedge("session", "list", "--json").out)[0]["id"]
    kedge("session", "rename", session, "Pourquoi\u00a0? \U0001f3f4\u200d\u2620 \u0645\u06cc\u200c\x1b[2J\u202e")
    (_, row) = kedge("session", "list").out.splitlines()
    assert row.endswith("Pourquoi ? \U0001f3f4\u200d\u2620 \u0645\u06cc\u200c␛[2J⟨U+202E⟩")


@pytest.mark.parametrize(
    "args", [["odd"], ["show"], ["show", "nobody"], ["rename", "nobody", "x"], ["export", "a", "b"]]
)
def test_session_refuses_what_it_cannot_do_in_one_line(kedge: Kedge, args: list[str]) -> None:
    done = kedge("session", *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_deleting_a_busy_session_ends_its_runs_first(kedge: Kedge) -> None:
    run_id = detach(kedge, "hang")
    session = lines(kedge("session", "list", "--json").out)[0]["id"]
    assert kedge("session", "delete", session).code == 0
    assert kedge("attach", "-q", run_id).code == 130


def test_logs_show_the_servers_words(kedge: Kedge) -> None:
    done = kedge("logs", "-n", "1000")
    assert done.code == 0
    assert "listening on unix://" in done.out
    assert kedge("logs", "-n", "x").code == 2
    assert "'--host'" in kedge("logs", "--host", "tcp://127.0.0.1:1").err, "a log is read where it is"


def test_logs_of_a_place_without_a_server(place: Place, tmp_path: Path) -> None:
    done = Kedge(place, tmp_path)("logs")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no server has run" in done.err


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("run", "serve", "story")])
def test_every_command_explains_itself(kedge: Kedge, name: str) -> None:
    done = kedge(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"usage: kedge {name}")


@pytest.mark.parametrize("args", [["-m", "nonsense"], ["--run-id", "a b"]])
def test_a_refused_prompt_leaves_no_session_behind(kedge: Kedge, args: list[str]) -> None:
    assert kedge.run(*args, "say hello").code == 2
    assert kedge.run("--detach", *args, "say hello").code == 2
    assert kedge("session", "list").out == ""


def test_a_session_is_called_what_was_asked_first(kedge: Kedge) -> None:
    kedge.run(f"say {'long ' * 30}")
    (session,) = lines(kedge("session", "list", "--json").out)
    assert session["title"].startswith("say long long")
    assert len(session["title"]) == 60


def test_what_others_wrote_does_not_drive_the_terminal(kedge: Kedge) -> None:
    kedge.run("say \x1b[31mred\x1b]0;title\x07")
    listed = kedge("runs").out + kedge("session", "list").out
    assert "red" in listed
    assert not set(listed) & {"\x1b", "\x07"}


def test_a_table_is_shown_on_a_terminal_that_does_not_say_how_wide_it_is(kedge: Kedge) -> None:
    kedge.run("say hello", "--run-id", "shown")
    ours, theirs = os.openpty()  # without a size
    try:
        assert finish(kedge.start("runs", stdout=theirs)).code == 0
        assert b"shown" in os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
