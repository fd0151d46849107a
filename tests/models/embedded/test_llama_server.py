"""llama.cpp's own server for real, through the OpenAI-compatible provider: it lists, streams, and calls tools."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Generator

import msgspec
import pytest

from kedge.config.schema import Config
from kedge.models.client import ModelClient
from kedge.models.provider_registry import configured_providers
from kedge.models.selection.selector import make_endpoint
from kedge.models.values import (
    Delta,
    Endpoint,
    StepEnd,
    StepRequest,
    TextDelta,
    ToolCallDelta,
    ToolSpec,
    UsageReport,
)
from kedge.protocol.messages import Message, Part, Role, Text, ToolCall, ToolResult
from tests.models.embedded import cache
from tests.models.embedded.llama_server import CONTEXT_TOKENS, WITH_TOOLS, serving

LIMIT_S = 120.0
VIEW = ToolSpec(
    "view", "Reads a file", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)


@pytest.fixture(scope="module")
def plain() -> Generator[str]:
    """With the template of the starter, which knows no tools."""
    with serving(cache.starter()) as url:
        yield url


@pytest.fixture(scope="module")
def with_tools() -> Generator[str]:
    with serving(cache.starter(), WITH_TOOLS) as url:
        yield url


@pytest.fixture
async def models() -> AsyncGenerator[ModelClient]:
    async with asyncio.timeout(LIMIT_S):
        models = ModelClient()
        yield models
        await models.close()


async def chosen(models: ModelClient, url: str) -> Endpoint:
    """As a run has it that names only the provider."""
    endpoint = make_endpoint(configured_providers(Config())["llamacpp"], "", {"LLAMACPP_BASE_URL": url})
    return await models.resolve_model(endpoint)


def message(role: Role, *parts: Part, model: str | None = None) -> Message:
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=model)


def round_of(name: str) -> list[Message]:
    """One that went before: so small a model learns from it what to do next."""
    call = ToolCall(f"call-{name}", "view", json.dumps({"path": f"{name}.txt"}), True)
    return [
        message("user", Text(f"Read {name}.txt")),
        message("assistant", call, model="llamacpp/starter"),
        message("tool", ToolResult(call.id, "view", "ok", False)),
    ]


async def ask(
    models: ModelClient, endpoint: Endpoint, history: list[Message], *tools: ToolSpec, most: int = 48
) -> list[Delta]:
    greedy = Endpoint(
        provider=endpoint.provider, model=endpoint.model, base_url=endpoint.base_url, extra_body={"temperature": 0}
    )
    request = StepRequest(system="", history=history, tools=tools, max_output_tokens=most)
    async with contextlib.aclosing(models.stream(greedy, request)) as groups:
        return [delta async for group in groups for delta in group]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


async def test_it_is_found_by_its_provider_and_streams_an_answer_with_its_usage(
    models: ModelClient, plain: str
) -> None:
    endpoint = await chosen(models, plain)
    assert endpoint.name.startswith("llamacpp/")
    assert endpoint.model.endswith("starter.gguf")
    deltas = await ask(models, endpoint, [message("user", Text("What is 2+2?"))])
    assert re.search(r"\b(4|four)\b", text(deltas)), text(deltas)
    assert len([delta for delta in deltas if isinstance(delta, TextDelta)]) > 3, "piece by piece"
    assert StepEnd("end_turn") in deltas
    (usage,) = [delta for delta in deltas if isinstance(delta, UsageReport)]
    assert usage.output_tokens


@pytest.mark.parametrize("provider", ["llamacpp", "openai"])
async def test_it_tells_its_window(models: ModelClient, plain: str, provider: str) -> None:
    endpoint = await chosen(models, plain)
    told = await models.add_window(msgspec.structs.replace(endpoint, provider=provider))
    assert told.info.context_window == CONTEXT_TOKENS


async def test_tools_that_its_template_does_not_know_do_no_harm(models: ModelClient, plain: str) -> None:
    endpoint = await chosen(models, plain)
    deltas = await ask(models, endpoint, [message("user", Text("What is 2+2?"))], VIEW)
    assert text(deltas)
    assert not [delta for delta in deltas if isinstance(delta, ToolCallDelta)]


async def test_a_call_comes_through_where_its_template_has_tools_and_the_result_goes_back(
    models: ModelClient, with_tools: str
) -> None:
    endpoint = await chosen(models, with_tools)
    history = [*round_of("b"), *round_of("c"), *round_of("d"), message("user", Text("Read a.txt"))]
    deltas = await ask(models, endpoint, history, VIEW)
    pieces = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert [piece.name for piece in pieces if piece.name] == ["view"]
    assert json.loads("".join(piece.input for piece in pieces)) == {"path": "a.txt"}
    assert StepEnd("tool_use") in deltas
    call = ToolCall(pieces[0].id, "view", '{"path":"a.txt"}', True)
    history += [
        message("assistant", call, model=endpoint.name),
        message("tool", ToolResult(call.id, "view", "ok", False)),
    ]
    assert [delta for delta in await ask(models, endpoint, history, VIEW, most=4) if isinstance(delta, StepEnd)]
