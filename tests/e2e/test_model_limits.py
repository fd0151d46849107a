"""Efforts, fallback models and limits on cost, as somebody has them who runs `kedge`."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.client.command import Kedge
from tests.e2e.home import Home, asking
from tests.support.model_control import ModelControl, model_thread

PRICES = "input_price = 1.0\noutput_price = 1000.0\n"


@pytest.fixture
def other() -> Generator[ModelControl]:
    with model_thread(("second",)) as other:
        other.plan(text="by another")
        yield other


def configure(home: Home, text: str) -> None:
    own = home.config_dir / "kedge" / "config.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(text)


def test_another_model_takes_over_and_the_command_says_so(home: Home, other: ModelControl, tmp_path: Path) -> None:
    kedge = Kedge(home, tmp_path)
    configure(home, f'fallback_models = ["groq/x", "other/second"]\n[providers.other]\nbase_url = "{other.base_url}"\n')
    prompt = "limited"
    home.models.on({"status": 429, "error": "rate_limit_exceeded", "retry_after": "7200"}, prompt=prompt)
    done = kedge.run(prompt)
    assert (done.code, done.out) == (0, "by another\n"), done
    (line,) = [line for line in done.err.splitlines() if "Going on with" in line]
    assert "Going on with other/second, because openai/fake-model is not available" in line
    events = [json.loads(line) for line in kedge.run("--json", prompt).out.splitlines()]
    (told,) = [event["payload"]["payload"] for event in events if "fallback" in str(event["payload"])]
    assert (told["type"], told["details"]["to"], told["code"]) == ("fallback", "other/second", "rate_limited")
    (tmp_path / "kedge.toml").write_text('fallback_models = ["other/theirs"]\n')
    assert kedge.run(prompt).out == "by another\n"
    assert all(call["body"]["model"] == "second" for call in other.stats()["calls"]), "a repository names none"


def test_a_day_over_its_limit_fails_in_the_command(home: Home, tmp_path: Path) -> None:
    kedge = Kedge(home, tmp_path)
    configure(home, f"agent.max_cost_day = 1.0\n[providers.openai.models.fake-model]\n{PRICES}")
    spent = asking(text="done", input_tokens=0, output_tokens=1200)
    assert kedge.run(spent).code == 0
    failed = kedge.run(asking(text="more"))
    assert failed.code == 1
    assert "agent.max_cost_day" in failed.err
    assert "$1.2" in failed.err
    assert kedge.run("-y", asking(text="more")).code == 1, "a permission to act is none to spend"


@pytest.mark.parametrize(("given", "sent"), [("xhigh", "xhigh"), ("max", "xhigh"), ("medium", "medium")])
def test_an_effort_is_sent_as_the_model_knows_it(home: Home, tmp_path: Path, given: str, sent: str) -> None:
    kedge = Kedge(home, tmp_path)
    configure(home, '[providers.openai]\nwire = "responses"\n')
    home.models.reset()
    done = kedge.run("-m", "openai/gpt-5.4", "--effort", given, asking(text="done"))
    assert done.code == 0, done
    assert ("Effort xhigh instead of max" in done.err) == (given != sent)
    calls = [call["body"] for call in home.models.stats()["calls"]]
    assert [call["reasoning"]["effort"] for call in calls] == [sent]
