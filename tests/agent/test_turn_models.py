"""How hard a model is asked to think: by whose word, in which words of the wire, and told where it is in vain."""

from __future__ import annotations

import json

import pytest

from kedge.agent.turn_models import choose_effort, explain_other_effort
from kedge.config.schema import Config, Effort, ModelConfig, ProviderConfig
from kedge.models import providers
from kedge.models.providers import NO_SETTINGS
from kedge.models.values import Endpoint, StepRequest, ToolSpec
from kedge.models.wires import chat


def endpoint(model: str, config: ProviderConfig = NO_SETTINGS) -> Endpoint:
    return Endpoint(provider="p", model=model, base_url="http://h", info=providers.find_model_info(model, config))


@pytest.mark.parametrize(
    ("model", "general", "own", "expected"),
    [
        ("gpt-5", None, None, None),
        ("gpt-5", "minimal", None, "minimal"),
        ("gpt-5", "high", "low", "low"),
        ("gpt-5.1", "medium", None, "medium"),
        ("gpt-4.1", "high", None, None),
        ("tester", "high", None, None),
        ("tester", None, "high", "high"),
        ("tester", None, "max", "max"),
        ("gpt-5", "max", None, "high"),
        ("gpt-5", None, "xhigh", "xhigh"),  # its user knows better
        ("gpt-5.4", "max", None, "xhigh"),
        ("gpt-6-sol", "max", None, "max"),
        ("claude-opus-4-6", "xhigh", None, "high"),
        ("claude-opus-4-6", "max", None, "max"),
        ("deepseek-v4-pro", "low", None, "high"),
    ],
)
def test_an_effort_is_asked_only_of_a_model_that_takes_it(
    model: str, general: Effort | None, own: Effort | None, expected: Effort | None
) -> None:
    settings = ProviderConfig(models={model: ModelConfig(reasoning_effort=own)} if own else {})
    config = Config(reasoning_effort=general, providers={"p": settings})
    assert choose_effort(endpoint(model, settings), config) == expected


@pytest.mark.parametrize(
    ("model", "effort", "has_tools", "sent"),
    [
        ("gpt-5", "minimal", True, "minimal"),
        ("gpt-5.1", "minimal", True, "low"),  # it knows no less
        ("gpt-5.4", "high", False, "high"),
        ("gpt-5.4", "max", False, "xhigh"),
        ("gpt-5.4", "high", True, None),
        ("gpt-6-sol", None, True, "none"),
        ("gpt-6-sol", "high", True, "none"),
        ("gpt-6-sol", None, False, None),
        ("gpt-4.1", "high", False, None),
        ("tester", "high", True, None),
    ],
)
def test_the_chat_wire_says_of_effort_what_the_model_takes(
    model: str, effort: Effort | None, has_tools: bool, sent: str | None
) -> None:
    tools = [ToolSpec("look", "Looks.", {"type": "object"})] if has_tools else []
    request = StepRequest(system="s", history=[], tools=tools, effort=effort)
    assert json.loads(chat.prepare_request(endpoint(model), request).body).get("reasoning_effort") == sent
    lost = None if effort is None else explain_other_effort(endpoint(model), effort, has_tools=has_tools)
    assert (lost is not None) == (effort is not None and sent != effort), "it is told where it is in vain"
