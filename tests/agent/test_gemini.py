"""The agent on Google's wire: what was signed goes back for as long as the session lives, and to nobody else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from kedge.config.schema import WireName
from kedge.models.wires.gemini import NOT_SIGNED
from kedge.protocol.messages import Reasoning
from tests.agent.driver import KEY, Driver
from tests.agent.fake_tools import FakeTools
from tests.models.wires.vendors import check_anthropic, check_chat, check_gemini, check_responses
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer
from tests.support.wires import WAYS, WIRES, access, conversation, environ

CHECKS = {"chat": check_chat, "responses": check_responses, "anthropic": check_anthropic, "gemini": check_gemini}


@pytest.fixture
def fake_tools() -> FakeTools:
    return FakeTools()


def flying(kedge: Kedge, models: ModelServer, fake_tools: FakeTools) -> Driver:
    """On Google's wire, unless a run names another: all can be reached."""
    reached = {name: value for wire in WIRES for name, value in access(wire, models, KEY).items()}
    env = {**environ("gemini", models, KEY), **reached}
    return Driver(kedge, models.base_url, tools=fake_tools.tools, env=env)


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, fake_tools: FakeTools) -> AsyncGenerator[Driver]:
    async with flying(kedge, model_server, fake_tools) as driver:
        yield driver


def peek(text: str) -> PlannedCall:
    return PlannedCall("peek", {"text": text})


def task(name: str, signature: str) -> list[Plan]:
    """Two calls side by side, another one, and an answer; each step is signed."""
    return [
        Plan(text="so", reasoning="hm", signature=signature, tool_calls=(peek(f"{name}1"), peek(f"{name}2"))),
        Plan(text="", signature=signature, tool_calls=(peek(f"{name}3"),)),
        Plan(text="done", signature=signature),
    ]


def signatures(body: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Of each part that the model said."""
    parts = [part for content in body["contents"] if content["role"] == "model" for part in content["parts"]]
    return [
        (next(kind for kind in ("functionCall", "text") if kind in part), part.get("thoughtSignature"))
        for part in parts
    ]


SIGNED = [
    ("text", None),
    ("functionCall", "c2ln"),
    ("functionCall", None),
    ("functionCall", "c2ln"),
    ("text", None),
    ("text", "c2ln"),
]


async def test_signatures_go_back_in_their_places_also_after_a_restart(
    driver: Driver, kedge: Kedge, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.on(task("a", "c2ln"), prompt="go")
    session = await kedge.session()
    assert (await driver.ask("go", session)).text == "done"
    assert [signatures(call.body) for call in model_server.calls] == [[], SIGNED[:3], SIGNED[:4]]
    await driver.ask("and now?", session)
    assert signatures(model_server.calls[-1].body) == SIGNED
    async with flying(kedge, model_server, fake_tools) as another:
        await another.ask("still there?", session)
    assert signatures(model_server.calls[-1].body)[: len(SIGNED)] == SIGNED
    for call in model_server.calls:
        check_gemini(call.body["contents"])
        assert call.headers["x-goog-api-key"] == KEY
    thoughts = [part for each in await kedge.messages(session) for part in each.parts if isinstance(part, Reasoning)]
    assert [part.text for part in thoughts if part.text] == ["hm"]


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "gemini"])
async def test_a_session_goes_from_google_to_another_and_back(
    driver: Driver, model_server: ModelServer, wire: WireName
) -> None:
    session = await driver.kedge.session()
    ways: list[WireName] = ["gemini", wire, "gemini", wire]
    for i, each in enumerate(ways):
        model_server.on(task(each, "c2ln" if each == "gemini" else "b3RoZXI="), prompt=f"go {i}")
        end = await driver.ask(f"go {i}", session, model=f"{WAYS[each].provider}/tester")
        assert (end.text, end.error) == ("done", None)
    calls = list(model_server.calls)
    assert len(calls) == 12
    for place, each in enumerate(ways):
        for call in calls[place * 3 : place * 3 + 3]:
            messages = [said for said in conversation(call.body) if said.get("role") != "system"]
            CHECKS[each](messages)
            assert ("c2ln" in str(messages)) == (each == "gemini" and messages != conversation(calls[0].body))
            assert "b3RoZXI=" not in str(messages) or each != "gemini"
    found = signatures(calls[8].body)
    assert found[: len(SIGNED)] == SIGNED
    assert [signature for kind, signature in found[len(SIGNED) :] if kind == "functionCall"][:3] == [
        NOT_SIGNED,
        None,
        NOT_SIGNED,
    ]
