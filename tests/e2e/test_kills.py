"""A server that is killed while something goes on beside a turn: the next one decides it, and guesses nothing (P13)."""

from __future__ import annotations

import os

from kedge.protocol.runs import Run
from tests.e2e.home import Home
from tests.e2e.project import Project, at_home, bash, call, says, serve, step
from tests.server.client import done
from tests.support.invariants import ends_of
from tests.support.processes import is_alive

ALL = {"permissions": "allow"}


def killed_and_served_again(home: Home, project: Project) -> None:
    project.server.kill()
    project.server = serve(home)


def test_sub_agents_end_with_the_server_and_their_parent_goes_on(home: Home) -> None:
    with at_home(home) as project:
        children = [
            project.prompt(step(call("ls", path="."), gate=gate), words=f"look at {gate}", text="Never told.")
            for gate in ("one", "two")
        ]
        prompt = project.prompt(step(*(call("agent", prompt=each) for each in children)), text="I go on alone.")
        project.submit(project.session(), prompt, "parent", **ALL)
        for gate in ("one", "two"):
            project.models.wait(held=gate)
        killed_and_served_again(home, project)
        run = project.ended("parent")
        assert (run["state"], run["attempt"]) == ("completed", 2)
        log = project.log()
        ends = ends_of(log)
        kinds = {event.payload.run_id: event.payload.kind for event in log if isinstance(event.payload, Run)}
        assert {ends[run_id].cancelled for run_id, kind in kinds.items() if kind == "agent"} == {True}
        assert ends["parent"].text == "I go on alone."
        assert all("Interrupted" in result.content and result.is_error for result in project.results(prompt))
        assert len(project.results(prompt)) == 2, "none is asked a second time"


def test_a_job_ends_with_the_server_and_the_model_is_told(home: Home) -> None:
    with at_home(home) as project:
        session = project.session()
        begin = project.prompt(step(bash("echo $$ > pid; exec sleep 300", run_in_background=True)), text="It runs.")
        project.submit(session, begin, "begin", **ALL)
        assert project.ended("begin")["state"] == "completed"
        metadata = project.results(begin)[0].metadata
        assert metadata is not None
        waited = project.prompt(step(bash("until [ -s pid ]; do sleep 0.05; done")))
        project.submit(session, waited, "waited", **ALL)
        assert project.ended("waited")["state"] == "completed"
        pid = int((project.directory / "pid").read_text())
        assert is_alive(pid)
        killed_and_served_again(home, project)
        assert not is_alive(pid)
        assert done(project.client.get(f"{project.workspace}/jobs"))["jobs"] == []
        asking = project.prompt(step(call("job_output", job_id=metadata["job_id"])), text="It is gone.")
        project.submit(session, asking, "asking", **ALL)
        assert project.ended("asking")["state"] == "completed"
        assert "the server may have been restarted" in project.results(asking)[0].content


def test_kedge_run_does_not_notice_that_its_server_was_killed_during_a_command(home: Home) -> None:
    with at_home(home) as project:
        os.mkfifo(project.directory / "door")
        prompt = project.prompt(
            step(bash("echo x >> count; echo at work; cat door"), text="I begin."),
            step(bash("cat count")),
            text="Done.",
        )
        with project.client.events(project.workspace) as events:
            process = project.kedge.start("run", "-y", "-q", prompt, "--run-id", "task")
            events.until(says("at work"))
            project.server.kill()  # the command starts another
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out.decode(), err.decode()) == (0, "Done.\n", "")
        project.kedge.end_server()
        project.server = serve(home)
        interrupted, counted = project.results(prompt)
        assert "Interrupted" in interrupted.content
        assert counted.content == "x", "never silently repeated"
        assert project.ended("task")["attempt"] == 2


def test_calls_behind_an_interrupted_one_are_not_run(home: Home) -> None:
    with at_home(home) as project:
        os.mkfifo(project.directory / "door")
        prompt = project.prompt(
            step(
                call("write", path="before", content="x"),
                bash("echo x >> count; echo at work; cat door"),
                call("write", path="behind", content="x"),
                call("ls", path="."),
            ),
            step(call("write", path="behind", content="y")),
            text="Done.",
        )
        with project.client.events(project.workspace) as events:
            project.submit(project.session(), prompt, "task", **ALL)
            events.until(says("at work"))
        killed_and_served_again(home, project)
        assert project.ended("task")["state"] == "completed"
        before, interrupted, behind, listed, again = project.results(prompt)
        assert "Created" in before.content
        assert "Interrupted" in interrupted.content
        for result in (behind, listed):
            assert result.is_error
            assert result.content.startswith("Not run: a call before it was interrupted.")
        assert again.content == "Created behind, 1 line."
        assert (project.directory / "count").read_text() == "x\n"
        assert (project.directory / "behind").read_text() == "y"
