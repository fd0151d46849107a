"""A task that outgrows its model's context goes on from a summary; one whose configuration changes heeds it at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kedge.config.schema import WireName
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import text_of
from tests.e2e.project import UNITTEST, Project, bash, call, edit, step
from tests.server.client import done
from tests.server.process import Server
from tests.support.invariants import ends_of, final_messages
from tests.support.model_control import ModelControl
from tests.support.wires import WAYS, WIRES

ASKED = "replaced by a summary"  # words of the request for one


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    return Project(server, models, tmp_path / "shop")


def configure(project: Project, text: str) -> None:
    (project.directory / "kedge.toml").write_text(text)


@pytest.mark.parametrize("wire", WIRES)
def test_a_task_goes_on_from_a_summary_in_the_middle_of_it(project: Project, wire: WireName) -> None:
    configure(project, f"[providers.{WAYS[wire].provider}.models.fake-model]\ncontext_window = 100_000\n")
    view = call("view", path="shop/price.py")
    prompt = project.prompt(
        step(call("todos", todos=[{"content": "mend the price", "status": "in_progress"}])),
        step(view, bash(UNITTEST), input_tokens=90_000),
        text="Never said.",
    )
    summary = f"Goal of {prompt}: the price is wrong."
    project.models.on({"text": summary, "input_tokens": 70}, prompt=ASKED, system=str(project.directory))
    # What the model reads from then on begins with the summary, which is its prompt.
    project.models.on(
        step(call("write", path="shop/price.py", content="")),  # refused: the summary left out what it had read
        step(view),
        step(edit("sum(prices) - 1", "sum(prices)")),
        step(bash(UNITTEST)),
        {"text": "Mended."},
        prompt=summary,
    )
    ended = project.run(prompt, "-y", "-q", "--run-id", "long", wire=wire)
    assert (ended.code, ended.out, ended.err) == (0, "Mended.\n", ""), ended
    assert project.passes
    log = project.log()
    told = [event.payload for event in log if isinstance(event.payload, AgentEvent)]
    assert [(event.type, event.details and event.details["why"]) for event in told] == [("summarize", "full")]
    unread, _, mended, passed = project.results(prompt)[-4:]
    assert unread.is_error
    assert not mended.is_error
    assert "OK" in passed.content
    (summed,) = [message for message in final_messages(log).values() if message.summary]
    assert "mend the price" in text_of(summed.parts), "the list of what is to do is kept word for word"
    assert prompt in text_of(summed.parts)
    assert "- shop/price.py" in text_of(summed.parts), "it must be viewed again"
    assert 90_000 + 70 < ends_of(log)["long"].usage.input_tokens < 91_000


def test_a_session_is_summarized_on_request_and_goes_on(project: Project) -> None:
    session = project.session()
    empty = done(project.client.post(f"{project.workspace}/agent/sessions/{session}/summarize", {}), 202)
    assert project.ended(empty["run_id"])["state"] == "completed", "there is nothing to do"
    first = project.prompt(step(call("view", path="shop/price.py")), text="It takes one away.")
    assert project.run(first, "-s", session, "-q").code == 0
    project.models.on({"text": "The price is one too low."}, prompt=ASKED, system=str(project.directory))
    receipt = done(project.client.post(f"{project.workspace}/agent/sessions/{session}/summarize", {}), 202)
    assert project.ended(receipt["run_id"])["state"] == "completed"
    shown = project.kedge("session", "show", session).out
    assert re.search(r"^## Summary.*\n\nThe price is one too low\.", shown, re.MULTILINE)
    assert shown.count("## Summary") == 1, "and nothing else is one"
    again = done(project.client.post(f"{project.workspace}/agent/sessions/{session}/summarize", {}), 202)
    assert project.ended(again["run_id"])["state"] == "completed", "what was just summarized is not summarized again"
    then = project.prompt(text="On.")
    assert project.run(then, "-s", session, "-q").out == "On.\n"
    (body,) = project.requests(then)
    assert "The price is one too low." in str(body["messages"])
    assert "It takes one away." not in str(body["messages"])


def test_a_change_of_the_configuration_holds_for_the_next_run_and_is_told(project: Project) -> None:
    def may_run() -> bool:
        prompt = project.prompt(step(bash(f"{UNITTEST} -q")))
        assert project.run(prompt, "--allow", "bash", "-q").code == 0
        return not project.results(prompt)[0].is_error

    with project.client.events(project.workspace) as events:
        events.until("caught_up")
        assert may_run()
        configure(project, "permissions.deny = ['bash(python3 *)']\n")
        events.until("config_changed")
        assert not may_run()
        (project.directory / "kedge.toml").unlink()
        events.until("config_changed")
        assert may_run()


def test_a_configuration_that_is_broken_says_where_and_works_again_when_it_is_mended(project: Project) -> None:
    configure(project, "\n[permissions]\nmoed = 'plan'\n")
    refused = project.run(project.prompt(), "-q")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused
    assert f"{project.directory}/kedge.toml:3" in refused.err
    assert "mode" in refused.err
    configure(project, "[permissions]\nmode = 'plan'\n")
    assert project.run(project.prompt(text="Planned."), "-q").out == "Planned.\n"
