"""What is known of the vendors' models, and what configuration says instead."""

from __future__ import annotations

import re
from datetime import date

import pytest

from kedge.config.schema import ModelConfig, ProviderConfig
from kedge.models import providers
from kedge.models.providers import BUILT_IN
from kedge.models.values import ModelInfo
from kedge.protocol.runs import EFFORTS

NOTHING = ProviderConfig()
HOSTS = ("openrouter", "groq", "together", "fireworks", "cerebras")  # of others' models
MODEL_NAME = re.compile(r"[~A-Za-z0-9][A-Za-z0-9._:@/-]*")


def test_the_catalog_has_a_date() -> None:
    assert date.fromisoformat(providers.catalog_date()) > date(2026, 1, 1)


def test_every_default_model_is_known_with_all_that_a_run_needs() -> None:
    for provider in BUILT_IN:
        for model in filter(None, (provider.large, provider.small)):
            assert model in providers.list_catalog()[provider.id] or providers.find_vendor(model) == provider.id, model
            info = providers.find_model_info(model, NOTHING, provider.id)
            assert info.tools
            assert info.context_window
    for vendor in ("openai", "anthropic"):
        info = providers.find_model_info(next(each.large for each in BUILT_IN if each.id == vendor), NOTHING, vendor)
        assert info.images
        assert info.max_output_tokens
        assert info.input_price


def test_whoever_is_in_the_catalog_is_a_provider() -> None:
    assert set(providers.list_catalog()) <= {provider.id for provider in BUILT_IN}


def test_the_figures_of_every_model_are_sane() -> None:
    names = [name for provider, models in providers.list_catalog().items() for name in models if provider not in HOSTS]
    assert len(names) == len(set(names)) > 30  # a name says whose it is
    for models in providers.list_catalog().values():
        for name, info in models.items():
            assert MODEL_NAME.fullmatch(name)
            assert info.context_window
            assert info.max_output_tokens is None or info.max_output_tokens < info.context_window
            assert (info.input_price is None) == (info.output_price is None)  # half a price would be a wrong one
            if info.input_price is None or info.output_price is None:
                assert info.cache_read_price is None
                assert info.cache_write_price is None
                continue
            assert 0 < info.input_price < info.output_price
            assert info.cache_read_price is None or 0 <= info.cache_read_price < info.input_price
            assert info.cache_write_price is None or info.cache_write_price > info.input_price
            assert info.long_prompt_tokens is None or info.long_prompt_tokens < info.context_window
            assert info.long_input_factor >= 1
            assert info.long_output_factor >= 1


def test_a_host_has_prices_of_its_own_and_nobody_else_has_them() -> None:
    groq, cerebras = (
        providers.find_model_info("openai/gpt-oss-120b", NOTHING, "groq"),
        providers.find_model_info("gpt-oss-120b", NOTHING, "cerebras"),
    )
    assert groq.input_price
    assert cerebras.input_price
    assert groq.input_price != cerebras.input_price
    assert providers.find_model_info("openai/gpt-oss-120b", NOTHING, "somebody").input_price is None


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("openai/gpt-5", "gpt-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("mistral-medium-latest", "mistral-medium"),
        ("anthropic/claude-haiku-4-5-20251001", "claude-haiku-4-5"),
    ],
)
def test_an_edition_of_a_model_is_that_model(name: str, known_as: str) -> None:
    assert providers.find_model_info(name, NOTHING) == providers.find_model_info(known_as, NOTHING)
    assert providers.find_model_info(name, NOTHING).context_window


@pytest.mark.parametrize("name", ["", "tester", "gpt-5-pro", "gpt-5x", "gpt-52025-08-07", "claude", "my-gpt-5"])
def test_a_model_that_is_not_known_is_not_guessed_at(name: str) -> None:
    assert providers.find_model_info(name, NOTHING) == ModelInfo()
    assert providers.find_vendor(name) is None


def test_configuration_knows_better() -> None:
    settings = ProviderConfig(
        models={
            "gpt-5": ModelConfig(context_window=1000, images=False, input_price=0.0),
            "mine": ModelConfig(context_window=8192, tools=False, reasoning_effort="low"),
        }
    )
    known = providers.find_model_info("gpt-5", NOTHING)
    changed = providers.find_model_info("gpt-5", settings)
    assert (changed.context_window, changed.images, changed.input_price) == (1000, False, 0.0)
    assert (changed.output_price, changed.reasoning) == (known.output_price, True)
    assert providers.find_model_info("mine", settings) == ModelInfo(
        context_window=8192, tools=False, reasoning=True, efforts=EFFORTS
    )
