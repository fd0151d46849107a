"""A run that waits for its provider, as its user has it: told, resumed by the next server, canceled, timed out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator
from typing import Any

from kedge.protocol.events import Event
from kedge.protocol.runs import Run
from tests.client.command import finish, read_until
from tests.e2e.home import Home, asking, new_home
from tests.e2e.project import Project, at_home, bash, serve, step
from tests.server.client import done
from tests.server.process import Server
from tests.support.model_control import model_process

WAITING = b"Waiting for the rate limit of openai until "
LIMITED: dict[str, Any] = {"status": 429, "error": "rate_limit_exceeded"}
ALL = {"permissions": "allow"}


def serve_impatiently(home: Home) -> Server:
    return Server(home, home.popen("serve", module="tests.e2e.impatient"))


@contextlib.contextmanager
def impatient(home: Home) -> Generator[Project]:
    project = Project(serve_impatiently(home), home.models, home.directory / "shop")
    try:
        yield project
        assert project.server.stop() == 0
    finally:
        project.server.kill()


def waits(run_id: str) -> Callable[[Event], bool]:
    return lambda event: (
        isinstance(event.payload, Run) and event.payload.run_id == run_id and event.payload.waiting is not None
    )


def seen_waiting(project: Project, run_id: str) -> None:
    with project.client.events(project.workspace, after=0) as events:
        events.until(waits(run_id))


def stored(project: Project, run_id: str) -> dict[str, object]:
    return done(project.client.get(f"{project.workspace}/runs/{run_id}"))


def test_kedge_run_waits_for_a_limit_and_says_so(home: Home) -> None:
    with impatient(home) as project:
        prompt = asking(**LIMITED, retry_after="2", times=1, text="at last")
        result = project.run(prompt)
        assert (result.code, result.out) == (0, "at last\n"), result
        assert re.search(r"Waiting for the rate limit of openai until \d\d:\d\d", result.err), result
        assert result.err.count("Waiting for") == 1, result
        assert "Continuing" in result.err


def test_a_wait_is_shown_everywhere_and_a_cancel_ends_it(home: Home) -> None:
    with at_home(home) as project:
        session = project.session()
        project.submit(session, asking(**LIMITED, retry_after="3600"), "r")
        seen_waiting(project, "r")
        run = stored(project, "r")
        assert run["state"] == "running"
        assert isinstance(run["waiting"], dict)
        assert set(run["waiting"]) == {"reason", "until"}  # pyright: ignore[reportUnknownArgumentType]
        status = done(project.client.get(f"{project.workspace}/agent/sessions/{session}"))
        assert status["active"]["waiting"] == run["waiting"]
        assert re.search(r"r +running, waiting until .*\d\d:\d\d \(rate_limit\)", project.kedge("runs").out)
        attached = project.kedge.start("attach", "r")
        read_until(attached.stderr, WAITING)
        assert project.kedge("cancel", "r").code == 0
        assert finish(attached).code == 130
        run = project.ended("r")
        assert run["state"] == "cancelled"
        assert "waiting" not in run


def test_the_timeout_goes_on_counting(home: Home) -> None:
    with at_home(home) as project:
        result = project.run(asking(**LIMITED, retry_after="600"), "--timeout", "3", "--run-id", "r")
        assert result.code == 124, result
        assert WAITING.decode() in result.err
        assert project.ended("r")["state"] == "cancelled"


def test_a_limit_that_is_too_long_for_a_script_fails_at_once(home: Home) -> None:
    with at_home(home) as project:
        result = project.run(asking(**LIMITED, retry_after="7200"))
        assert (result.code, result.out) == (1, ""), result
        assert "the limit resets" in result.err
        assert "agent.max_wait_s (15 min)" in result.err


def test_a_killed_server_is_followed_by_one_that_waits_on_and_finishes(home: Home) -> None:
    with impatient(home) as project:
        limited = step(bash("cat count"), **LIMITED, retry_after="4", times=2)
        prompt = project.prompt(step(bash("echo x >> count")), limited, text="Done.")
        project.submit(project.session(), prompt, "r", **ALL)
        seen_waiting(project, "r")
        waiting = stored(project, "r")["waiting"]
        project.server.kill()
        project.server = serve(home)  # an ordinary one: the time is stored
        assert stored(project, "r").get("waiting") in (waiting, None)
        run = project.ended("r")
        assert (run["state"], run["attempt"]) == ("completed", 1)
        assert (project.directory / "count").read_text() == "x\n"
        project.log()


def test_an_orderly_restart_leaves_the_wait_to_the_next_server(home: Home) -> None:
    with impatient(home) as project:
        project.submit(project.session(), asking(**LIMITED, retry_after="3", times=1, text="at last"), "r")
        seen_waiting(project, "r")
        assert project.server.stop() == 0
        project.server = serve(home)
        run = project.ended("r")
        assert (run["state"], run["attempt"]) == ("completed", 1)


def test_a_model_server_that_comes_back_is_waited_for() -> None:
    with contextlib.ExitStack() as stack:
        models, process = stack.enter_context(model_process())
        home = stack.enter_context(new_home(models, has_titles=False))
        project = stack.enter_context(impatient(home))
        session = project.session()
        project.submit(session, asking(text="here"), "first")
        assert project.ended("first")["state"] == "completed"
        process.terminate()
        process.wait()
        project.submit(session, asking(text="back again"), "second")
        seen_waiting(project, "second")
        stack.enter_context(model_process("--port", str(models.port)))
        run = project.ended("second")
        assert (run["state"], run["attempt"]) == ("completed", 1)
        lines = [line for line in project.kedge("attach", "second").err.splitlines() if "network" in line]
        assert lines == ["kedge: Waiting for the network: openai cannot be reached"]
