"""The examples of hosted CI are YAML of the right shape, and their scripts do what the page says: each is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.docs.pages import fenced
from tests.docs.stand_ins import KEY
from tests.e2e.home import Home, new_home
from tests.support.model_control import ModelControl

LIMIT_S = 45
GITHUB, GITLAB = (cast("dict[Any, Any]", yaml.safe_load(text)) for text in fenced("docs/ci.md", "yaml"))
JOB: dict[str, Any] = GITHUB["jobs"]["review"]
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in JOB["steps"] if "name" in step}
REVIEW = "The date has no zone."


@pytest.fixture
def home(model_control: ModelControl) -> Generator[Home]:
    with new_home(model_control) as home:
        yield home


class Runner:
    """A machine of the CI, with a change in a clone."""

    def __init__(self, home: Home, directory: Path) -> None:
        self.clone = directory / "clone"
        self.summary = directory / "summary.md"
        programs = directory / "programs"
        programs.mkdir()
        (programs / "pip").write_text('#!/bin/sh\n[ "$1" = install ]\n')  # it is installed
        (programs / "pip").chmod(0o700)
        self._env = {
            **{name: value for name, value in home.env.items() if name != "KEDGE_MODEL"},
            "HOME": str(directory),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GITHUB_BASE_REF": "main",
            "GITHUB_SHA": "4f2a91",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "CI_JOB_ID": "17",
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": "origin/main",
        }

    def prepare(self) -> None:
        me = "-c user.name=me -c user.email=me@example.com -c init.defaultBranch=main"
        self.run(
            f"git {me} init -q origin && cd origin && echo one > a && git add a && git {me} commit -qm one"
            " && cd .. && git clone -q origin clone"
            f" && cd clone && git checkout -qb change && echo two > a && git {me} commit -qam two",
            at=self.clone.parent,
        )

    def run(
        self, script: str, variables: Mapping[str, str] = {}, *, at: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        env = {**self._env, **{name: value for name, value in variables.items() if "${{" not in value}}
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=at or self.clone,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture
def runner(home: Home, tmp_path: Path) -> Runner:
    runner = Runner(home, tmp_path)
    runner.prepare()
    return runner


def of(*settings: dict[str, Any]) -> dict[str, str]:
    """Variables, with the model that is there; the key comes with the home."""
    told = {name: value for each in settings for name, value in each.items()}
    assert told["KEDGE_MODEL"].startswith("openai/")
    return {**told, "OPENAI_API_KEY": KEY}


def test_a_workflow_has_what_hosted_ci_wants() -> None:
    assert GITHUB[True] == "pull_request"  # `on` is a yes in YAML, and GitHub knows
    assert GITHUB["permissions"] == {"contents": "read"}
    assert JOB["timeout-minutes"] * 60 > 600, "the job has time to say that the run had none"
    assert all(("uses" in step) != ("run" in step) for step in JOB["steps"])
    secrets = [step for step in JOB["steps"] if "OPENAI_API_KEY" in step.get("env", {})]
    assert {step["env"]["OPENAI_API_KEY"] for step in secrets} == {"${{ secrets.OPENAI_API_KEY }}"}
    assert "OPENAI_API_KEY" not in JOB["env"], "only the steps that need it have it"


def test_the_steps_of_the_workflow_review_a_change(runner: Runner, model_control: ModelControl) -> None:
    model_control.plan(text=REVIEW)
    for step in STEPS.values():
        if "run" in step:
            done = runner.run(step["run"], of(JOB["env"], step.get("env", {})))
            assert done.returncode == 0, f"{step['name']}\n{done.stdout}\n{done.stderr}"
    assert runner.summary.read_text().startswith(f"{REVIEW}\n\n---\n")
    prompts = [str(call["body"]) for call in model_control.stats()["calls"]]
    assert any("+two" in prompt and "Review this change" in prompt for prompt in prompts)


def test_a_review_that_fails_fails_the_job_and_one_that_is_late_does_not(
    runner: Runner, model_control: ModelControl
) -> None:
    review = STEPS["Review"]
    variables = of(JOB["env"], review["env"])
    model_control.plan(status=401)
    done = runner.run(review["run"], variables)
    assert (done.returncode, "::error::kedge run ended with 1" in done.stdout) == (1, True), done
    model_control.reset()
    model_control.plan(hang_after=0)
    late = review["run"].replace("--timeout 600", "--timeout 0.5")
    done = runner.run(late, {**variables, "GITHUB_RUN_ATTEMPT": "2"})
    assert (done.returncode, "::warning::no review within 10 minutes" in done.stdout) == (0, True), done


def test_the_job_of_gitlab_reviews_a_change(runner: Runner, model_control: ModelControl) -> None:
    model_control.plan(text=REVIEW)
    job = GITLAB["review"]
    variables = {**of(job["variables"]), "PIP_CACHE_DIR": ""}
    for line in (*job["script"], *job["after_script"]):
        done = runner.run(line, variables)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (runner.clone / "review.md").read_text() == f"{REVIEW}\n"
    assert job["artifacts"]["paths"] == ["review.md"]
    assert job["allow_failure"]["exit_codes"] == [4, 124]
