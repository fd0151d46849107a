"""What goes on beside a turn: sub-agents, background jobs, words from the side, and a cancel that ends all of it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from kedge.config.schema import WireName
from kedge.protocol.messages import Delta, ToolResult
from kedge.protocol.runs import Run
from kedge.protocol.sessions import Session
from tests.client.command import finish
from tests.e2e.home import Home
from tests.e2e.project import Project, at_home, bash, call, says, step, wire_env
from tests.server.client import done
from tests.server.process import Server
from tests.support.invariants import ends_of
from tests.support.model_control import ModelControl
from tests.support.processes import is_alive
from tests.support.wires import WAYS, WIRES, conversation

TITLE = "A scripted title"


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    return Project(server, models, tmp_path / "shop")


# sub-agents


def delegated(project: Project, *gates: str) -> tuple[str, list[str]]:
    """A prompt whose first step asks two sub-agents, each of which reads a file and waits at its gate."""
    steps = [step(call("view", path="shop/price.py")), step(call("grep", pattern="total"), input_tokens=20)]
    children = [
        project.prompt(*steps[:-1], {**steps[-1], "gate": gate}, words=f"look into {gate}", text=f"Report of {gate}.")
        for gate in gates
    ]
    return project.prompt(step(*(call("agent", prompt=each) for each in children)), text="Both told."), children


def test_sessions_of_sub_agents_are_listed_only_when_all_are_asked_for(project: Project) -> None:
    child = project.prompt(text="I looked.", words="look into it")
    assert project.run(project.prompt(step(call("agent", prompt=child, title="A look")), text="Told."), "-y").code == 0
    own, *rest = project.kedge("session", "list", "--json").out.splitlines()
    assert (rest, "parent_session_id" in own) == ([], False)
    assert "A look" not in project.kedge("session", "list").out
    assert "A look" in project.kedge("session", "list", "--all").out


@pytest.mark.parametrize("wire", WIRES)
def test_sub_agents_of_a_step_work_at_the_same_time_and_their_cost_counts(home: Home, wire: WireName) -> None:
    with at_home(
        home, f"[providers.{WAYS[wire].provider}.models.fake-model]\ninput_price = 1\noutput_price = 0\n"
    ) as project:
        gates = [f"{wire}-one", f"{wire}-two"]
        prompt, children = delegated(project, *gates)
        process = project.kedge.start("run", prompt, "--run-id", "parent", env=wire_env(wire, home.models))
        for gate in gates:
            project.models.wait(held=gate)  # both are at work, and neither has ended
        with project.client.events(project.workspace, after=0) as events:  # and the title is paid for
            events.until(lambda event: isinstance(event.payload, Session) and event.payload.title == TITLE)
        sessions = done(project.client.get(f"{project.workspace}/sessions"))["sessions"]
        parents = [session.get("parent_session_id") for session in sessions]
        (own,) = [session["id"] for session in sessions if not session.get("parent_session_id")]
        assert sorted(parents, key=str) == sorted([None, own, own], key=str)
        for gate in gates:
            project.models.release(gate)
        ended = finish(process)
        assert (ended.code, ended.out) == (0, "Both told.\n"), ended
        assert "I look" not in ended.err, "what sub-agents say is theirs"
        assert [result.content for result in project.results(prompt)] == [f"Report of {gate}." for gate in gates]
        assert [len(project.requests(child)) for child in children] == [4, 4], "three of its own, and one that reports"
        ends = ends_of(project.log())
        assert len(ends) == 3
        own_tokens, child_tokens = 3 * 10, 10 + 20 + 10  # two steps and a title
        assert ends["parent"].usage.input_tokens == own_tokens + 2 * child_tokens
        assert not ends["parent"].usage.estimated
        assert ends["parent"].usage.cost == pytest.approx((own_tokens + 2 * child_tokens) / 1e6)
        spent = done(project.client.get(f"{project.workspace}/sessions/{own}"))["usage"]
        assert spent["input_tokens"] == own_tokens + 2 * child_tokens


def test_a_sub_agent_changes_nothing(project: Project) -> None:
    child = project.prompt(step(bash("touch made"), call("write", path="made", content="x")), text="I could not.")
    prompt = project.prompt(step(call("agent", prompt=child)), text="It could not.")
    assert project.run(prompt, "-y", "-q").out == "It could not.\n"
    assert [result.content for result in project.results(prompt)] == ["I could not."]
    assert project.status() == []


def test_a_cancel_of_the_parent_ends_its_sub_agents_first(project: Project, gate: str) -> None:
    gates = [f"{gate}-one", f"{gate}-two"]
    prompt, _ = delegated(project, *gates)
    run_id = f"parent-{gate}"
    process = project.kedge.start("run", prompt, "--run-id", run_id, "-q")
    for each in gates:
        project.models.wait(held=each)
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert (ended.code, ended.out, ended.err) == (130, "", ""), ended
    log = project.log()  # which also says that children end before their parents
    ends = ends_of(log)
    assert len(ends) == 3
    assert all(end.cancelled for end in ends.values())
    kinds = {event.payload.kind for event in log if isinstance(event.payload, Run)}
    assert kinds == {"prompt", "agent"}
    assert project.run(project.prompt(text="On."), "-C", "-q").out == "On.\n"


# background jobs


def job_of(result: ToolResult) -> str:
    assert result.metadata is not None
    return result.metadata["job_id"]


def test_a_job_outlives_its_run_is_read_by_the_next_and_ends_with_the_server(home: Home) -> None:
    with at_home(home) as project:
        script = home.directory / "knock.sh"
        script.write_text("echo $$ > pid; read word < front; echo $word; read word < back; echo $word; sleep 300\n")
        for door in ("front", "back"):  # one of its own for each word: a writer may still be there when it is read
            os.mkfifo(project.directory / door)
        begin = project.prompt(step(bash(f"sh {script}", run_in_background=True, description="knock")), text="It runs.")
        assert project.run(begin, "-y", "-q").out == "It runs.\n"
        job = job_of(project.results(begin)[0])
        (project.directory / "front").write_text("first\n")
        asking = step(call("job_output", job_id=job, wait=30, until="output"))
        first, second = project.prompt(asking), project.prompt(asking)
        assert project.run(first, "-C", "-q").code == 0
        assert "first" in project.results(first)[0].content
        pid = int((project.directory / "pid").read_text())
        (project.directory / "back").write_text("second\n")
        assert project.run(second, "-q").code == 0
        said = project.results(second)[0].content
        assert "second" in said, "another session of this directory reads it, too"
        assert "first" not in said, "what was read is not said again"
        (listed,) = done(project.client.get(f"{project.workspace}/jobs"))["jobs"]
        assert (listed["id"], listed["state"]) == (job, "running")
        assert is_alive(pid)
        assert project.server.stop() == 0
        assert not is_alive(pid)


def test_a_job_is_killed_by_the_model_or_by_a_client(project: Project) -> None:
    begin = project.prompt(step(*(bash(f"echo $$ > pid{n}; sleep 300", run_in_background=True) for n in (1, 2))))
    project.run(begin, "-y", "-q")
    first, second = (job_of(result) for result in project.results(begin))
    end = project.prompt(step(call("job_kill", job_id=first)))
    project.run(end, "-y", "-q")
    assert not project.results(end)[0].is_error
    assert done(project.client.post(f"{project.workspace}/jobs/{second}/kill"))["state"] == "ended"
    for n in (1, 2):
        pid = (project.directory / f"pid{n}").read_text().strip()
        assert not pid or not is_alive(int(pid))


# words from the side


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_said_meanwhile_joins_at_the_next_step(project: Project, wire: WireName) -> None:
    os.mkfifo(project.directory / "door")
    prompt = project.prompt(step(bash("echo waiting; cat door")), words="work", text="Never said.")
    aside = project.prompt(step(call("view", path="shop/price.py")), words="look at the price first", text="Both done.")
    env = wire_env(wire, project.models)
    session = project.session()
    with project.client.events(project.workspace) as events:
        events.until("caught_up")
        process = project.kedge.start("run", "-y", "-q", "-s", session, prompt, "--run-id", f"host-{wire}", env=env)
        events.until(says("waiting"))
        other = project.kedge.start("run", "-y", "-q", "-s", session, "--on-busy", "steer", aside, env=env)
        events.until(lambda event: isinstance(event.payload, Run) and event.payload.prompt == aside)
        (project.directory / "door").write_text("open\n")
        ends = [finish(process), finish(other)]
    assert [(end.code, end.out, end.err) for end in ends] == [(0, "Both done.\n", "")] * 2
    bodies = project.requests(aside)
    assert len(bodies) == 2, "one step with what joined, and one with what it looked at"
    shown = str(conversation(bodies[0]))
    assert shown.index("open") < shown.index(aside), "after the result of the call that was at work"
    project.log()


# a cancel


STUBBORN = """\
import contextlib, os, signal, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
with contextlib.suppress(OSError):  # whoever leads a group cannot leave it
    os.setsid()
listening = socket.create_server(("127.0.0.1", 0))
print("port", listening.getsockname()[1], flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    "how", ["python3 stubborn.py", "python3 stubborn.py | cat", "(python3 stubborn.py &) ; sleep 300"]
)
def test_ctrl_c_ends_a_command_that_does_not_want_to(project: Project, how: str) -> None:
    (project.directory / "stubborn.py").write_text(STUBBORN)
    prompt = project.prompt(step(bash(how)), text="Never said.")
    said: list[str] = []

    def is_listening(event: Any) -> bool:
        if isinstance(event.payload, Delta) and event.payload.kind == "tool_output":
            said.append(event.payload.text)
        return "port" in "".join(said) and "".join(said).endswith("\n")

    with project.client.events(project.workspace) as events:
        events.until("caught_up")
        process = project.kedge.start("run", "-y", prompt, "--run-id", "stubborn")
        events.until(is_listening)
        port = int("".join(said).split()[1])
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert (ended.code, ended.out) == (130, ""), ended
    assert "Traceback" not in ended.err
    socket.create_server(("127.0.0.1", port)).close()  # it is free
    end = ends_of(project.log())["stubborn"]
    assert end.cancelled
    assert end.error is None
    (result,) = project.results(prompt)
    assert result.is_error
    on = project.prompt(step(bash("echo on")), text="On.")
    assert project.run(on, "-C", "-y", "-q").out == "On.\n"
