"""What a run asks a person, another client lists and answers: once, for the session, or no; also after a kill (P14)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kedge.config.schema import WireName
from tests.e2e.home import Home
from tests.e2e.project import UNITTEST, Project, at_home, bash, call, serve, step, wire_env
from tests.server.client import done
from tests.server.process import Server
from tests.support.model_control import ModelControl
from tests.support.wires import WIRES

ASK = {"permissions": "ask"}
NOTE = "echo x >> notes"
WHICH = call("question", questions=[{"question": "Which price?", "kind": "one", "options": ["net", "gross"]}])


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    return Project(server, models, tmp_path / "shop")


def notes(project: Project) -> int:
    path = project.directory / "notes"
    return len(path.read_text().split()) if path.exists() else 0


def pending(project: Project) -> list[str]:
    return [
        request["id"]
        for kind in ("permissions", "questions")
        for request in done(project.client.get(f"{project.workspace}/{kind}"))[kind]
    ]


def test_a_no_ends_the_turn_and_the_next_prompt_goes_on(project: Project) -> None:
    session = project.session()
    refused = project.prompt(step(bash(NOTE), bash("touch never")), step(bash("touch never")), text="Never said.")
    project.submit(session, refused, "refused", **ASK)
    request = project.asked("refused")
    assert (request["tool"], request["action"], request["params"]["command"]) == ("bash", "execute", NOTE)
    assert notes(project) == 0, "nothing is done while it waits"
    assert project.grant(request, "deny")["resolved"]
    assert project.ended("refused")["state"] == "completed"
    assert project.grant(request, "allow") == {"resolved": False, "by": "unknown", "action": "deny"}
    said, other = project.results(refused)
    assert said.is_error
    assert "Refused by the user" in said.content
    assert other.is_error, "what came after it in the same step is not done, and says so"
    assert len(project.requests(refused)) == 1, "the model waits for what the person says next"

    project.submit(session, project.prompt(step(bash("git status")), text="Then so."), "next", **ASK)
    assert project.ended("next")["state"] == "completed"
    assert (project.status(), pending(project)) == ([], [])


def test_what_is_allowed_once_is_asked_again_and_what_is_allowed_for_the_session_is_not(project: Project) -> None:
    session = project.session()
    prompt = project.prompt(step(bash(NOTE)), step(bash(NOTE)), step(bash(NOTE), bash(NOTE)), text="Noted.")
    project.submit(session, prompt, "noting", **ASK)
    first = project.asked("noting")
    assert project.grant(first, "allow")["resolved"]
    second = project.asked("noting", after=first["id"])
    assert notes(project) == 1
    assert project.grant(second, "allow_session")["resolved"]
    assert project.ended("noting")["state"] == "completed"
    assert notes(project) == 4
    assert [result.is_error for result in project.results(prompt)] == [False] * 4

    project.submit(session, project.prompt(step(bash(NOTE))), "later", **ASK)
    assert project.ended("later")["state"] == "completed"
    assert notes(project) == 5, "the session remembers"

    project.submit(project.session(), project.prompt(step(bash(NOTE))), "elsewhere", **ASK)
    request = project.asked("elsewhere")
    assert notes(project) == 5, "another one does not"
    project.grant(request, "deny")
    assert project.ended("elsewhere")["state"] == "completed"


def test_what_is_always_allowed_is_in_the_users_configuration_and_is_not_asked_in_any_session(home: Home) -> None:
    config = "# mine\n[permissions]\ndeny = ['bash(git push)'] # never\n"
    with at_home(home, config) as project:
        prompt = project.prompt(step(bash("touch a")), step(bash("touch a")), text="Done.")
        project.submit(project.session(), prompt, "first", **ASK)
        request = project.asked("first")
        assert request["params"]["always_rules"] == ["bash(touch a)"]
        assert project.grant(request, "allow_always") == {"resolved": True, "by": "unknown", "action": "allow_always"}
        file = home.config_dir / "kedge" / "config.toml"
        assert file.read_text() == f'{config}allow = ["bash(touch a)"]\n'
        assert project.ended("first")["state"] == "completed", "the second call is not asked"
        project.submit(project.session(), project.prompt(step(bash("touch a"))), "second", **ASK)
        assert project.ended("second")["state"] == "completed"

        project.submit(project.session(), project.prompt(step(bash("rm a"))), "third", **ASK)
        request = project.asked("third")
        assert request["params"]["always_rules"] == []
        refused = project.client.post(
            f"{project.workspace}/permissions/grant", {"id": request["id"], "action": "allow_always"}
        )
        assert (refused.status, refused.code) == (422, "no_rule")
        assert project.grant(request, "deny")["resolved"], "it was still open"
        assert project.ended("third")["state"] == "completed"


def test_a_rule_that_was_written_just_before_a_kill_holds_and_nothing_is_left_to_answer(home: Home) -> None:
    with at_home(home) as project:
        project.server.kill()
        project.server = serve(home, KEDGE_FAILPOINT="answer.begin=kill")
        prompt = project.prompt(step(bash(NOTE)), text="Noted.")
        project.submit(project.session(), prompt, "noting", **ASK)
        request = project.asked("noting")
        with contextlib.suppress(OSError, EOFError):
            project.grant(request, "allow_always")
        project.server.process.wait(30)
        project.server.kill()
        project.server = serve(home)
        assert project.ended("noting")["state"] == "completed"
        assert (notes(project), pending(project)) == (1, [])


def test_a_denial_with_a_reason_outlives_a_killed_server(home: Home) -> None:
    with at_home(home) as project:
        project.server.kill()
        project.server = serve(home, KEDGE_FAILPOINT="answer.committed=kill")
        prompt = project.prompt(step(bash(NOTE)), text="Not noted.")
        project.submit(project.session(), prompt, "noting", **ASK)
        request = project.asked("noting")
        with contextlib.suppress(OSError, EOFError):
            project.client.post(
                f"{project.workspace}/permissions/grant",
                {"id": request["id"], "action": "deny", "reason": "write it into the log"},
            )
        project.server.process.wait(30)
        project.server.kill()
        project.server = serve(home)
        assert project.ended("noting")["state"] == "completed"
        (result,) = project.results(prompt)
        assert (result.is_error, "write it into the log" in result.content) == (True, True)
        assert len(project.requests(prompt)) == 2, "the model was told, and answered"
        assert notes(project) == 0


def test_tests_that_were_allowed_for_the_session_may_be_run_in_other_ways(project: Project) -> None:
    steps = [step(bash(f"{UNITTEST}{words}")) for words in ("", " -v", " -q tests.test_price")]
    prompt = project.prompt(*steps, text="Run.")
    project.submit(project.session(), prompt, "tests", **ASK)
    project.grant(project.asked("tests"), "allow_session")
    assert project.ended("tests")["state"] == "completed"
    assert all("Ran 1 test" in result.content for result in project.results(prompt))


@pytest.mark.parametrize("wire", WIRES)
def test_an_edit_is_shown_before_it_is_allowed(project: Project, wire: WireName) -> None:
    change = call("edit", path="shop/price.py", old_string="sum(prices) - 1", new_string="sum(prices)")
    prompt = project.prompt(step(call("view", path="shop/price.py")), step(change), text="Mended.")
    env = {**project.server.place.env, **wire_env(wire, project.models)}
    project.submit(project.session(), prompt, "mend", env=env, model=env.get("KEDGE_MODEL"), **ASK)
    request = project.asked("mend")
    assert request["path"] == str(project.directory / "shop/price.py")
    assert "-    return sum(prices) - 1\n+    return sum(prices)\n" in request["params"]["diff"]
    assert "- 1" in project.price
    project.grant(request, "allow")
    assert project.ended("mend")["state"] == "completed"
    assert project.passes


def test_a_file_that_changed_while_a_person_thought_is_not_overwritten(project: Project) -> None:
    change = call("edit", path="shop/price.py", old_string="sum(prices) - 1", new_string="sum(prices)")
    prompt = project.prompt(step(call("view", path="shop/price.py")), step(change), text="I look again.")
    project.submit(project.session(), prompt, "mend", **ASK)
    request = project.asked("mend")
    (project.directory / "shop/price.py").write_text("# somebody else was here: sum(prices) - 1\n")
    project.grant(request, "allow")
    assert project.ended("mend")["state"] == "completed"
    assert project.price == "# somebody else was here: sum(prices) - 1\n"
    assert project.results(prompt)[-1].is_error


@pytest.mark.parametrize("action", ["allow", "allow_session", "deny"])
def test_a_request_outlives_a_killed_server_under_the_same_id(home: Home, action: str) -> None:
    with at_home(home) as project:
        session = project.session()
        prompt = project.prompt(step(bash(NOTE)), step(bash(NOTE)), text="Noted.")
        project.submit(session, prompt, "noting", **ASK)
        request = project.asked("noting")
        project.server.kill()
        project.server = serve(home)
        assert project.asked("noting") == request
        assert notes(project) == 0
        project.grant(request, action)
        if action == "allow":  # the second one is asked, too: it is another call
            other = project.asked("noting", after=request["id"])
            project.server.kill()
            project.server = serve(home)
            assert project.asked("noting", after=request["id"]) == other
            project.grant(other, "allow")
        assert project.ended("noting")["state"] == "completed"
        assert notes(project) == (0 if action == "deny" else 2), "each once"
        assert len(project.requests(prompt)) == (1 if action == "deny" else 3), "no step was taken twice"
        assert pending(project) == []
        project.log()


def test_a_session_remembers_what_it_was_allowed_after_a_killed_server(home: Home) -> None:
    with at_home(home) as project:
        session = project.session()
        project.submit(session, project.prompt(step(bash(NOTE))), "first", **ASK)
        project.grant(project.asked("first"), "allow_session")
        assert project.ended("first")["state"] == "completed"
        project.server.kill()
        project.server = serve(home)
        project.submit(session, project.prompt(step(bash(NOTE))), "second", **ASK)
        assert project.ended("second")["state"] == "completed"
        assert notes(project) == 2


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "after a kill"])
def test_a_question_is_answered_by_another_client(home: Home, is_killed: bool) -> None:
    with at_home(home) as project:
        prompt = project.prompt(step(WHICH), text="Gross it is.")
        project.submit(project.session(), prompt, "asking", **ASK)
        request = project.asked("asking", "question")
        if is_killed:
            project.server.kill()
            project.server = serve(home)
            assert project.asked("asking", "question") == request
        answer = {"id": request["id"], "answers": ["gross"]}
        told = project.client.post(f"{project.workspace}/questions/answer", answer, Kedge_Client="a phone")
        assert done(told) == {"resolved": True, "by": "a phone", "action": "answer"}
        late = project.client.post(f"{project.workspace}/questions/answer", {**answer, "answers": ["net"]})
        assert done(late) == {"resolved": False, "by": "a phone", "action": "answer"}
        assert project.ended("asking")["state"] == "completed"
        (result,) = project.results(prompt)
        assert "A: gross" in result.content
        assert "A: gross" in str(project.requests(prompt)[-1]["messages"][-1])


def test_a_question_is_not_offered_where_nobody_is(project: Project) -> None:
    prompt = project.prompt(step(WHICH), text="I decided myself.")
    done = project.run(prompt, "-q")
    assert done.out == "I decided myself.\n"
    assert all("question" not in str(tool["function"]["name"]) for tool in project.requests(prompt)[0]["tools"])
    assert "There is no tool `question`" in project.results(prompt)[0].content
