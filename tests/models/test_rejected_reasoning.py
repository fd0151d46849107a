"""A session outlives thoughts that the provider does not take back, which it lost with an account or a key."""

from __future__ import annotations

import contextlib
import json

import msgspec
import pytest

from kedge.models import client
from kedge.models.client import ModelClient, RejectedReasoning
from kedge.models.errors import ReasoningRejected
from kedge.models.values import Delta, Endpoint, ModelInfo, StepRequest, TextDelta
from kedge.models.wires.responses import Mark
from kedge.protocol.messages import Finish, Message, Part, Reasoning, Text
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

REFUSED = Plan(status=400, error="invalid_encrypted_content", message="The encrypted content could not be verified.")


def message(name: str, *parts: Part, session_id: str = "s") -> Message:
    role = "assistant" if name.startswith("a") else "user"
    model = "openai/m" if role == "assistant" else None
    return Message(
        id=name, session_id=session_id, run_id="r", role=role, parts=list(parts), created_at=0.0, model=model
    )


def answer(name: str, session_id: str = "s") -> Message:
    kept = Reasoning("hm", Mark(id=f"rs_{name}", encrypted_content="x").signature)
    return message(name, kept, Text("so"), Finish("end_turn"), session_id=session_id)


def request(*history: Message) -> StepRequest:
    return StepRequest(system="", history=history)


async def ask(models: ModelClient, server: ModelServer, *history: Message) -> str:
    info = ModelInfo(reasoning=True)
    endpoint = Endpoint(provider="openai", model="m", base_url=server.base_url, wire="responses", info=info)
    heard: list[Delta] = []
    async with contextlib.aclosing(models.stream(endpoint, request(*history))) as groups:
        async for deltas in groups:
            heard += deltas
    return "".join(delta.text for delta in heard if isinstance(delta, TextDelta))


def sent(server: ModelServer) -> list[list[str]]:
    """The thoughts that went out with each call."""
    return [[item["id"] for item in call.body["input"] if item.get("type") == "reasoning"] for call in server.calls]


async def test_a_refusal_of_thoughts_is_answered_without_them_and_later_ones_go_back(model_server: ModelServer) -> None:
    models = ModelClient()
    model_server.next_plans = [REFUSED, Plan(text="on"), Plan(text="and on")]
    history = [message("u1", Text("go")), answer("a1"), message("u2", Text("go"))]
    assert await ask(models, model_server, *history) == "on"
    later = [*history, answer("a2"), message("u3", Text("go"))]
    assert await ask(models, model_server, *later) == "and on"
    assert sent(model_server) == [["rs_a1"], [], ["rs_a2"]]
    texts = [json.dumps(call.body["input"]).count('"so"') for call in model_server.calls]
    assert texts == [1, 1, 2], "what was said is still told"
    await models.close()


async def test_where_there_are_no_thoughts_they_are_not_what_is_wrong(model_server: ModelServer) -> None:
    models = ModelClient()
    model_server.plan = REFUSED
    with pytest.raises(ReasoningRejected):
        await ask(models, model_server, message("u1", Text("go")))
    assert len(model_server.calls) == 1
    with pytest.raises(ReasoningRejected):
        await ask(models, model_server, message("u1", Text("go")), answer("a1"), message("u2", Text("go")))
    assert len(model_server.calls) == 3, "once without them, and not again"
    await models.close()


def test_a_session_that_was_quiet_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_REJECTED_SESSIONS", 2)
    known = RejectedReasoning()
    requests = [request(answer("a1", session_id)) for session_id in ("one", "two", "three")]
    assert [known.add(each) for each in requests] == [True] * 3
    assert [known.remove_from(each) == each for each in requests] == [True, False, False]
    assert not known.add(requests[2])
    assert known.remove_from(StepRequest(system="", history=[])).history == []
    whole = msgspec.structs.replace(requests[1], history=[*requests[1].history, answer("a2", "two")])
    assert known.add(whole), "there are new ones"
