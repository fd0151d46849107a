"""Tasks that do not go as planned: people who change their minds, files that change underneath, bare environments."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from kedge.config.schema import WireName
from tests.client.command import finish
from tests.e2e.home import is_accepted
from tests.e2e.project import Project, bash, call, edit, says, step, wire_env
from tests.server.client import done
from tests.server.process import Server
from tests.support.invariants import ends_of
from tests.support.model_control import ModelControl
from tests.support.processes import is_alive
from tests.support.wires import WIRES

ASK = {"permissions": "ask"}
LONG = "echo $$ > pid; echo at work; sleep 300"


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    return Project(server, models, tmp_path / "shop")


def is_over(project: Project) -> bool:
    return not is_alive(int((project.directory / "pid").read_text()))


def test_what_a_sub_agent_asks_is_asked_by_its_parent(project: Project, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("the secret of the price\n")
    child = project.prompt(step(call("view", path=str(tmp_path / "outside.txt"))), text="I read it.")
    prompt = project.prompt(step(call("agent", prompt=child)), text="It read it.")
    session = project.session()
    project.submit(session, prompt, "parent", **ASK)
    with project.client.events(project.workspace, after=0) as events:
        events.until("permission_request")
    (request,) = done(project.client.get(f"{project.workspace}/permissions"))["permissions"]
    assert (request["session_id"], request["run_id"]) == (session, "parent")
    assert request["path"] == str(tmp_path / "outside.txt")
    project.grant(request, "allow")
    assert project.ended("parent")["state"] == "completed"
    assert "the secret of the price" in str(project.requests(child)[1]["messages"])
    project.log()


def test_a_no_to_one_of_two_that_are_asked_at_once_withdraws_the_other(project: Project, tmp_path: Path) -> None:
    outside = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in outside:
        path.write_text("outside\n")
    prompt = project.prompt(step(*(call("view", path=str(path)) for path in outside)), text="Never said.")
    project.submit(project.session(), prompt, "both", **ASK)
    with project.client.events(project.workspace, after=0) as events:
        events.until("permission_request")
        events.until("permission_request")
    first, second = done(project.client.get(f"{project.workspace}/permissions"))["permissions"]
    assert project.grant(first, "deny")["resolved"]
    assert project.ended("both")["state"] == "completed"
    late = project.grant(second, "allow")
    assert (late["resolved"], late["by"]) == (False, "server")
    assert all(result.is_error and "outside" not in result.content for result in project.results(prompt))
    assert len(project.requests(prompt)) == 1


def test_a_question_that_nobody_wants_to_answer_lets_the_model_decide(project: Project) -> None:
    question = call("question", questions=[{"question": "Net or gross?"}])
    prompt = project.prompt(step(question), text="Then net.")
    project.submit(project.session(), prompt, "asking", **ASK)
    request = project.asked("asking", "question")
    assert done(project.client.post(f"{project.workspace}/questions/cancel", {"id": request["id"]}))["resolved"]
    assert project.ended("asking")["state"] == "completed"
    assert "Nobody answered" in project.results(prompt)[0].content


def test_a_cancel_withdraws_what_was_asked(project: Project) -> None:
    session = project.session()
    project.submit(session, project.prompt(step(bash("touch never"))), "asking", **ASK)
    request = project.asked("asking")
    cancelled = done(project.client.post(f"{project.workspace}/agent/sessions/{session}/cancel"))
    assert cancelled == {"cancelled": ["asking"]}
    assert project.ended("asking")["state"] == "cancelled"
    late = project.grant(request, "allow")
    assert (late["resolved"], late["by"]) == (False, "server")
    assert project.status() == []
    project.log()


@pytest.mark.parametrize(("how", "code"), [("time", 124), ("SIGTERM", 143), ("interrupt", 130)])
def test_a_command_is_ended_whoever_ends_its_run(project: Project, how: str, code: int) -> None:
    session = project.session()
    args = ["-s", session, "--run-id", f"long-{how}"] + (["--timeout", "2"] if how == "time" else [])
    with project.client.events(project.workspace) as events:
        events.until("caught_up")
        process = project.kedge.start("run", "-y", "-q", project.prompt(step(bash(LONG))), *args)
        events.until(says("at work"))
        if how == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        if how == "interrupt":
            next_one = project.prompt(step(bash("echo next")), text="Next.")
            ended = project.run(next_one, "-y", "-q", "-s", session, "--on-busy", "interrupt")
            assert (ended.code, ended.out) == (0, "Next.\n"), ended
        ended = finish(process)
    assert (ended.code, ended.out) == (code, ""), ended
    assert is_over(project)
    assert ends_of(project.log())[f"long-{how}"].cancelled


def test_a_closed_pipe_leaves_the_task_at_work(project: Project) -> None:
    os.mkfifo(project.directory / "door")
    prompt = project.prompt(step(bash("echo at work; cat door; touch made")), text="Made.")
    reading, writing = os.pipe()
    with project.client.events(project.workspace) as events:
        events.until("caught_up")
        process = project.kedge.start("run", "-y", "-q", "--json", "--stream", prompt, "--run-id", "on", stdout=writing)
        os.close(writing)
        events.until(says("at work"))
        os.close(reading)
        (project.directory / "door").write_text("open\n")
        assert finish(process).code == 141
    assert project.ended("on")["state"] == "completed"
    assert (project.directory / "made").exists()


def test_a_file_that_changed_since_it_was_read_is_read_again(project: Project) -> None:
    mend = edit("sum(prices) - 1", "sum(prices)")
    view = call("view", path="shop/price.py")
    prompt = project.prompt(
        step(call("write", path="shop/price.py", content="")),  # not read
        step(view),
        step(bash("sed -i 's/What/Just what/' shop/price.py")),
        step(mend),  # changed since
        step(view),
        step(mend, edit("Just what", "What")),  # its own change is known
        text="Mended.",
    )
    assert project.run(prompt, "-y", "-q").out == "Mended.\n"
    results = [result for result in project.results(prompt) if result.name in ("edit", "write")]
    assert [result.is_error for result in results] == [True, True, False, False]
    assert "has not been read" in results[0].content
    assert "changed" in results[1].content
    assert project.status() == [" M shop/price.py"]
    assert project.passes


@pytest.mark.parametrize("wire", WIRES)
def test_each_line_of_json_is_an_event_of_this_run(project: Project, wire: WireName) -> None:
    prompt = project.prompt(step(bash("printf '\\0\\377\\033[31mred\\033[0m ä😀'"), text="I try."), text="Tried.")
    ended = project.run(prompt, "-y", "--json", "--stream", "--run-id", f"json-{wire}", wire=wire)
    assert ended.code == 0, ended
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert {event["payload"]["payload"].get("run_id") for event in events} == {f"json-{wire}"}
    assert events[-1]["type"] == "run_complete"
    assert events[-1]["payload"]["payload"]["text"] == "Tried."
    (result,) = project.results(prompt)
    assert "red ä😀" in result.content
    assert "\x1b" not in result.content


def test_what_is_said_between_the_calls_is_streamed_with_blank_lines(project: Project) -> None:
    prompt = project.prompt(step(bash("echo one"), text="First."), step(bash("echo two"), text="Second."), text="Last.")
    ended = project.run(prompt, "-y", "-q", "--stream")
    assert (ended.code, ended.out, ended.err) == (0, "First.\n\nSecond.\n\nLast.\n", ""), ended


def test_a_bare_environment_is_enough(project: Project) -> None:
    kept = ("PATH", "KEDGE_DATA_DIR", "XDG_RUNTIME_DIR", "KEDGE_MODEL", *wire_env("chat", project.models))
    bare = {name: value for name, value in project.server.place.env.items() if name in (*kept, "OPENAI_BASE_URL")}
    prompt = project.prompt(step(bash("env | cut -d= -f1 | sort | tr '\\n' ' '"), call("ls", path=".")), text="Bare.")
    fields = {"env": bare, "permissions": "allow", "model": "openai/fake-model"}
    project.submit(project.session(), prompt, "bare", **fields)
    assert project.ended("bare")["state"] == "completed"
    names = project.results(prompt)[0].content.split()
    assert "PATH" in names
    assert "HOME" not in names, "nothing of the server's own"
    assert "KEDGE_TOKEN" not in names


def test_a_directory_that_is_gone_is_told_and_comes_back(project: Project) -> None:
    session = project.session()
    workspace = project.workspace
    project.directory.rename(project.directory.with_name("away"))
    prompt = project.prompt(step(bash("echo here"), call("ls", path=".")), text="Where is it?")
    project.client.submit(workspace, session, prompt, run_id="gone", permissions="allow")
    run = project.client.ended(workspace, "gone")
    project.directory.with_name("away").rename(project.directory)
    assert run["state"] in ("completed", "failed")
    if run["state"] == "failed":
        assert str(project.directory) in (run["error"] or "")
    back = project.prompt(step(bash("echo here")), text="Here.")
    assert project.run(back, "-y", "-q", "-s", session).out == "Here.\n"


def test_two_clients_that_name_the_same_run_get_one_task(project: Project) -> None:
    session = project.session()
    prompt = project.prompt(step(bash("echo x >> count")), text="Counted.")
    args = ["run", "-y", "-q", "-s", session, "--run-id", "same", prompt]
    with project.client.events(project.workspace) as events:
        events.until("caught_up")
        processes = [project.kedge.start(*args) for _ in range(3)]
        events.until(is_accepted("same"))
        ends = [finish(process) for process in processes]
    assert [(end.code, end.out, end.err) for end in ends] == [(0, "Counted.\n", "")] * 3, ends
    assert (project.directory / "count").read_text() == "x\n"
