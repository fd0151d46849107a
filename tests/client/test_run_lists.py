"""Lists of runs and sessions, and commands that take a run by the start of its ID."""

from __future__ import annotations

import json
import re

import pytest

from tests.client.command import Kedge


@pytest.mark.parametrize("args", [("runs",), ("runs", "--open"), ("session",), ("sessions",), ("session", "list", "x")])
def test_an_empty_list_says_so_and_is_empty_as_json(kedge: Kedge, args: tuple[str, ...]) -> None:
    done = kedge(*args)
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("kedge: No ")
    as_json = kedge(*args, "--json")
    assert (as_json.code, as_json.out, as_json.err) == (0, "", "")


def test_runs_and_sessions_are_listed_newest_first_with_times_and_costs(kedge: Kedge) -> None:
    for name in ("one", "two", "three"):
        assert kedge.run("-q", "--run-id", name, f"use 7; say {name}").code == 0
    runs = kedge("runs").out.splitlines()
    assert runs[0].split() == ["RUN", "STATE", "STARTED", "TIME", "COST", "SESSION", "PROMPT"]
    assert [line.split()[0] for line in runs[1:]] == ["three", "two", "one"]
    assert all(re.search(r" completed +\d\d:\d\d +\d+\.\d s ", line) for line in runs[1:])
    listed = [json.loads(line) for line in kedge("runs", "--json").out.splitlines()]
    assert [run["run_id"] for run in listed] == ["three", "two", "one"]
    assert kedge("runs", "-n", "1").out.splitlines()[1:] == runs[1:2]
    sessions = [json.loads(line)["id"] for line in kedge("session", "list", "--json").out.splitlines()]
    assert sessions == [run["session_id"] for run in listed]
    assert kedge("sessions").out == kedge("session").out == kedge("session", "list").out
    assert kedge("sessions", "two").out.splitlines()[1].split()[0] == sessions[1]
    of_one = kedge("runs", "-s", sessions[0][:10], "--json").out
    assert [json.loads(line)["run_id"] for line in of_one.splitlines()] == ["three"]


def test_a_run_is_shown_with_its_prompt_and_its_error(kedge: Kedge) -> None:
    kedge.run("-q", "--run-id", "broken", "say half; fail no more paper")
    shown = kedge("runs", "show", "bro").out
    assert re.search(r"^State +failed$", shown, re.MULTILINE)
    assert re.search(r"^Error +no more paper$", shown, re.MULTILINE)
    assert shown.endswith("\nsay half; fail no more paper\n")
    assert json.loads(kedge("runs", "show", "broken", "--json").out)["run_id"] == "broken"
    assert kedge("runs", "show").code == kedge("runs", "show", "nothing").code == 2


def test_the_start_of_a_runs_id_is_enough_if_it_is_unique(kedge: Kedge) -> None:
    for name in ("review-1", "review-22", "other"):
        kedge.run("-q", "--run-id", name, f"say {name}")
    assert kedge("attach", "-q", "o").out == "other\n"
    assert kedge("attach", "-q", "review-2").out == "review-22\n"
    for command in ("attach", "cancel"):
        done = kedge(command, "review")
        assert (done.code, done.out) == (2, "")
        assert "review-1 " in done.err
        assert "review-22 " in done.err
        assert "other" not in done.err
    assert kedge("attach", "-q", "review-1").out == "review-1\n", "the whole ID wins over the start of another"
    assert kedge("attach", "nothing").code == 2


def test_a_run_is_canceled_by_the_start_of_its_id_or_of_its_sessions(kedge: Kedge) -> None:
    kedge.run("--detach", "--run-id", "first", "wait")
    assert kedge("cancel", "fir").out == "Canceled first\n"
    kedge.run("--detach", "--run-id", "second", "wait")
    session_id = json.loads(kedge("runs", "-n", "1", "--json").out)["session_id"]
    assert kedge("cancel", session_id[:12]).out == "Canceled second\n"
    assert kedge("cancel", "nothing").code == 2


def test_attach_alone_takes_the_newest_run(kedge: Kedge) -> None:
    empty = kedge("attach")
    assert (empty.code, empty.out) == (2, "")
    for name in ("one", "two"):
        kedge.run("-q", "--run-id", name, f"say {name}")
    kedge.run("-q", "--run-id", "three", "delegate say theirs; say three")
    done = kedge("attach")
    assert (done.code, done.out) == (0, "three\n")
    assert "three" in done.err
    assert kedge("attach", "-q").err == ""


def test_the_mode_that_was_chosen_for_a_run_is_shown(kedge: Kedge) -> None:
    kedge.run("-q", "--run-id", "plain", "say plain")
    kedge.run("-q", "--run-id", "planned", "--mode", "plan", "say planned")
    assert re.search(r"^Mode +plan$", kedge("runs", "show", "planned").out, re.MULTILINE)
    assert "plan" in kedge("attach", "planned").err.replace("planned", "")
    assert "plan" in kedge("attach").err.replace("planned", "")
    assert "plan" not in kedge("attach", "plain").err


def test_the_session_in_the_last_line_can_be_continued(kedge: Kedge) -> None:
    done = kedge.run("say one")
    session_id = done.err.split()[-1]
    assert kedge.run("-q", "-s", session_id, "say two").out == "two\n"
    assert len(kedge("sessions", "--json").out.splitlines()) == 1


@pytest.mark.parametrize("spelling", ["-y", "--yes", "--yolo"])
def test_never_ask_is_spelled_the_same_everywhere(kedge: Kedge, spelling: str) -> None:
    assert kedge.run("-q", spelling, "ask rm everything; say done").code == 0
    assert kedge(spelling, "runs").code == 2  # an option of `kedge` itself, too: see where it belongs
    assert "Unknown option" not in kedge(spelling, "runs").err
