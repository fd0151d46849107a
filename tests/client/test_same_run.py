"""A run that was named is the same run when it is sent again (P3), also by somebody who knows nothing but its name."""

from __future__ import annotations

import json

from tests.client.command import Kedge


def test_a_named_run_sent_again_is_the_same_run_in_its_own_session(kedge: Kedge) -> None:
    first = kedge.run("--run-id", "nightly", "say once", "-q")
    again = kedge.run("--run-id", "nightly", "say once", "-q")
    assert (first.code, first.out) == (again.code, again.out) == (0, "once\n"), again
    assert len(sessions(kedge)) == 1


def test_a_named_run_is_the_same_with_continue_though_another_session_was_used_since(
    kedge: Kedge,
) -> None:
    kedge.run("-C", "--run-id", "nightly", "say once")
    kedge.run("say another")
    again = kedge.run("-C", "--run-id", "nightly", "say once", "-q")
    assert (again.code, again.out) == (0, "once\n"), again


def test_the_name_of_a_run_with_another_prompt_is_refused(kedge: Kedge) -> None:
    kedge.run("--run-id", "nightly", "say once")
    other = kedge.run("--run-id", "nightly", "say other")
    assert other.code == 2
    assert "nightly" in other.err
    assert len(sessions(kedge)) == 1


def sessions(kedge: Kedge) -> list[str]:
    return [json.loads(line)["id"] for line in kedge("session", "list", "--json").out.splitlines()]
