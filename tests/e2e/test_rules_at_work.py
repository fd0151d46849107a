"""Modes, rules and limits at work in a whole task: what the flags, the repository and the user say, and who wins."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from kedge.protocol.messages import ToolResult
from tests.e2e.home import Home
from tests.e2e.project import UNITTEST, Project, at_home, bash, call, edit, step
from tests.server.process import Server
from tests.support.model_control import ModelControl

VIEW = step(call("view", path="shop/price.py"))
MEND = step(edit("sum(prices) - 1", "sum(prices)"))
RUN_TESTS = f"bash({UNITTEST} *)"


class Case(NamedTuple):
    """What is said where, and what comes of it."""

    args: str = ""
    repository: str = ""  # kedge.toml
    user: str = ""  # config.toml
    code: int = 0
    is_mended: bool = True
    is_tested: bool = True
    why: str = ""  # words of a refusal


NOBODY = "a permission that this run does not have"
CASES = {
    "nothing said": Case(code=4, is_mended=False, is_tested=False, why=NOBODY),
    "plan": Case("--mode plan", is_mended=False, is_tested=False, why="plan"),
    "plan, and yes to all": Case("--mode plan -y", is_mended=False, is_tested=False, why="plan"),
    "auto-edit": Case("--mode auto-edit", code=4, is_tested=False, why=NOBODY),
    "auto-edit and a rule": Case(f"--mode auto-edit --allow {RUN_TESTS!r}"),
    "yolo": Case("--mode yolo"),
    "allowed": Case(f"--allow {RUN_TESTS!r} --allow edit(shop/**)"),
    "all but one file": Case(
        "--mode auto-edit --allow bash --deny edit(shop/price.py)", is_mended=False, why="forbids"
    ),
    "denied beats allowed": Case(
        "--mode auto-edit --allow bash --deny 'bash(python3 *)'", is_tested=False, why="forbids"
    ),
    "the repository denies": Case(
        "--mode auto-edit --allow bash",
        repository="permissions.deny = ['bash(python3 *)']\n",
        is_tested=False,
        why="forbids",
    ),
    "the repository allows itself something": Case(
        repository="permissions.mode = 'yolo'\npermissions.allow = ['bash', 'edit']\n",
        code=4,
        is_mended=False,
        is_tested=False,
        why=NOBODY,
    ),
    "the repository is stricter": Case(
        "--allow bash", repository="permissions.mode = 'plan'\n", is_mended=False, is_tested=False, why="plan"
    ),
    "the user trusts the repository": Case(
        repository="permissions.allow = ['bash', 'edit']\n", user="trusted = ['DIRECTORY']\n"
    ),
    "the user allows": Case(user=f"[permissions]\nmode = 'auto-edit'\nallow = ['{RUN_TESTS}']\n"),
    "the user denies, the run allows": Case(
        "--mode auto-edit --allow bash",
        user="permissions.deny = ['bash(python3 *)']\n",
        is_tested=False,
        why="forbids",
    ),
}


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    return Project(server, models, tmp_path / "shop")


def check(project: Project, case: Case) -> None:
    (project.directory / "kedge.toml").write_text(case.repository)
    prompt = project.prompt(VIEW, MEND, step(bash(f"{UNITTEST} -v")), text="That was it.")
    done = project.run(prompt, *shlex.split(case.args))
    assert (done.code, done.out) == (case.code, "That was it.\n"), done
    _, mended, tested = project.results(prompt)
    assert ("- 1" not in project.price) is case.is_mended
    assert ("Ran 1 test" in tested.content) is case.is_tested
    refused = [result for result in (mended, tested) if result.is_error]
    assert len(refused) == 2 - case.is_mended - case.is_tested
    assert all(case.why in result.content or _is_hidden(result) for result in refused), refused


def _is_hidden(result: ToolResult) -> bool:
    """Where nothing may be changed, a model does not even see what would."""
    return "There is no tool `edit`" in result.content


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.user])
def test_modes_and_rules_decide_what_is_done(project: Project, name: str) -> None:
    check(project, CASES[name])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.user])
def test_the_users_own_rules_hold_in_every_run(home: Home, name: str) -> None:
    with at_home(home, CASES[name].user) as project:
        check(project, CASES[name])


def test_a_rule_that_cannot_be_read_is_the_users_to_mend(project: Project) -> None:
    done = project.run(project.prompt(), "--allow", "bash(")
    assert (done.code, done.out) == (2, ""), done
    assert "bash(" in done.err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--max-steps", "2"], "kedge: Stopped after 2 steps"),
        (["--max-cost", "0.5"], "kedge: Stopped at a cost of $0.6; the limit is $0.5"),
    ],
)
def test_a_run_that_reaches_its_limit_fails_and_its_work_stays(home: Home, args: list[str], told: str) -> None:
    with at_home(home, "[providers.openai.models.fake-model]\ninput_price = 3\n") as project:
        costly = {"input_tokens": 100_000}
        prompt = project.prompt({**VIEW, **costly}, {**MEND, **costly}, step(bash("touch never")))
        done = project.run(prompt, "-y", "-q", *args)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
        assert done.err.startswith(told), done
        assert project.status() == [" M shop/price.py"]
        assert project.run(project.prompt(text="On."), "-C", "-q").out == "On.\n"
