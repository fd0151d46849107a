"""Whatever happened to a conversation, every provider accepts it, and its beginning stays as it is."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.config.schema import WireName
from kedge.models.wires.history import GO_ON, Abilities, EncodingState, IdRule, valid_history
from kedge.models.wires.registry import WIRES
from kedge.protocol.messages import (
    Finish,
    FinishReason,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)
from tests.models.wires.conversations import histories
from tests.models.wires.vendors import CHECKS, OWN_LONG_ID

PROVIDERS = {"chat": "deepseek", "responses": "openai", "anthropic": "anthropic", "gemini": "gemini"}
ALL = Abilities(provider="anthropic")

wires = pytest.mark.parametrize("wire", list(WIRES))


def message(role: Role, *parts: Part, model: str | None = None, summary: bool = False) -> Message:
    return Message(
        id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=model, summary=summary
    )


def ask(text: str = "go") -> Message:
    return message("user", Text(text))


def calls(*ids: str, reason: FinishReason = "tool_use", model: str | None = None) -> Message:
    return message("assistant", *(ToolCall(i, "view", '{"path": "a"}', True) for i in ids), Finish(reason), model=model)


def result(call_id: str, content: str = "ok", *images: Image) -> Message:
    return message("tool", ToolResult(call_id, "view", content, False), *images)


def told(history: list[Message], abilities: Abilities = ALL) -> list[tuple[Role, list[Any]]]:
    """Roles, and what the parts say."""

    def word(part: Part) -> Any:
        match part:
            case Text(text):
                return text
            case ToolCall(call_id):
                return call_id
            case ToolResult(call_id, _, content, is_error):
                return (call_id, "failed" if is_error else content)
            case _:
                return part

    return [(each.role, [word(part) for part in each.parts]) for each in valid_history(history, abilities)]


def sent(wire: WireName, history: list[Message], *, images: bool = True, tools: bool = True, own: bool = True) -> Any:
    ids: IdRule = "anthropic" if wire == "anthropic" else "any"
    provider = PROVIDERS[wire] if own else "nobody"
    encoded = WIRES[wire].encode(
        history, Abilities(images=images, tools=tools, provider=provider, ids=ids), EncodingState()
    )
    return json.loads(msgspec.json.encode(encoded))


@pytest.mark.slow
@wires
@given(history=histories(), images=st.booleans(), tools=st.booleans(), own=st.booleans())
@settings(max_examples=150)
def test_any_history_is_accepted(wire: WireName, history: list[Message], images: bool, tools: bool, own: bool) -> None:
    if encoded := sent(wire, history, images=images, tools=tools, own=own):
        CHECKS[wire](encoded, has_tools=tools, sees=images)
        is_long = OWN_LONG_ID in json.dumps(encoded)
        assert not is_long or own or wire == "anthropic", "an id that only its giver takes"


@pytest.mark.slow
@wires
@given(before=histories(), after=histories())
@settings(max_examples=100)
def test_what_was_sent_before_a_prompt_stays_as_it_is(
    wire: WireName, before: list[Message], after: list[Message]
) -> None:
    after = [each for each in after if not each.summary]  # a summary takes the place of all before it
    known = sent(wire, before)
    whole = sent(wire, [*before, ask("a prompt"), *after])
    if wire == "anthropic" and known and known[-1]["role"] == "user":
        blocks = known[-1]["content"]  # the prompt joins the message before it, at its end
        assert whole[len(known) - 1]["content"][: len(blocks)] == blocks
        known.pop()
    assert whole[: len(known)] == known


def test_a_whole_conversation_passes_as_it_is() -> None:
    image = Image("image/png", b"png")
    history = [ask(), calls("a", "b"), result("a", "one", image), result("b", "two"), message("assistant", Text("so"))]
    assert told(history) == [
        ("user", ["go"]),
        ("assistant", ["a", "b"]),
        ("tool", [("a", "one"), image]),
        ("tool", [("b", "two")]),
        ("assistant", ["so"]),
    ]


def test_a_call_without_a_result_gets_one_right_after_it() -> None:
    assert told([ask(), calls("a", "b", reason="canceled"), result("b"), ask("again")]) == [
        ("user", ["go"]),
        ("assistant", ["a", "b"]),
        ("tool", [("a", "failed")]),
        ("tool", [("b", "ok")]),
        ("user", ["again"]),
    ]


def test_results_without_calls_and_those_that_come_twice_are_left_out() -> None:
    history = [
        ask(),
        result("x"),
        calls("a"),
        result("x"),
        result("a", "first"),
        result("a", "second"),
        ask(),
        result("a"),
    ]
    assert told(history) == [
        ("user", ["go"]),
        ("assistant", ["a"]),
        ("tool", [("a", "first")]),
        ("user", ["go"]),
    ]


def test_what_was_interrupted_is_left_out_with_its_results() -> None:
    history = [
        ask(),
        calls("a", reason="interrupted"),
        result("a"),
        message("assistant", Text("so"), Finish("end_turn")),
    ]
    assert told(history) == [("user", ["go"]), ("assistant", ["so"])]


def test_a_summary_stands_for_all_before_it_and_is_a_user_s() -> None:
    summary = message("assistant", Text("we did things"), Finish("end_turn"), summary=True)
    failed = message("assistant", Text("we di"), Finish("error"), summary=True)
    [(role, [text]), then] = told([ask("long ago"), calls("a"), summary, ask("now"), failed])
    assert role == "user"
    assert text.endswith("we did things")
    assert then == ("user", ["now"])


def test_a_conversation_that_begins_with_an_answer_gets_a_beginning() -> None:
    assert told([message("assistant", Text("hello"))]) == [("user", [GO_ON]), ("assistant", ["hello"])]


@pytest.mark.parametrize(
    ("given", "finished", "sent_as"),
    [
        ('{"path": "a"}', True, {"path": "a"}),
        ("", True, {}),
        ('{"path": "a', False, {}),
        ('{"path": "a', True, {"not_an_object": '{"path": "a'}),
        ("[1]", True, {"not_an_object": "[1]"}),
    ],
)
def test_inputs_are_objects(given: str, finished: bool, sent_as: Any) -> None:
    [_, answer, _] = valid_history([ask(), message("assistant", ToolCall("a", "view", given, finished))], ALL)
    [call] = answer.parts
    assert isinstance(call, ToolCall)
    assert json.loads(call.input) == sent_as


def test_reasoning_goes_back_only_to_who_gave_it() -> None:
    thought, unsigned = Reasoning("hm", "signed"), Reasoning("hm")
    history = [ask(), message("assistant", thought, unsigned, Text("so"), model="anthropic/claude")]
    assert told(history)[1] == ("assistant", [thought, "so"])
    assert told(history, Abilities(provider="openai"))[1] == ("assistant", ["so"])


def test_an_answer_that_was_cut_off_in_its_thoughts_ends_before_them() -> None:
    parts = [Text("so"), Reasoning("hm", "signed"), Finish("canceled")]
    assert told([ask(), message("assistant", *parts, model="anthropic/claude")])[1] == ("assistant", ["so"])


def test_a_model_that_cannot_see_is_told_what_it_misses() -> None:
    image = Image("image/png", b"png")
    history = [message("user", Text("look"), image), calls("a"), result("a", "shown", image)]
    blind = told(history, Abilities(images=False))
    assert "image/png, 3 bytes" in blind[0][1][1]
    assert "image/png, 3 bytes" in blind[2][1][0][1]


def test_a_model_without_tools_is_told_what_was_done() -> None:
    history = [ask(), calls("a"), result("a", "content"), message("assistant", Text("so"))]
    roles, words = zip(*told(history, Abilities(tools=False)), strict=True)
    assert roles == ("user", "assistant", "user", "assistant")
    assert "view" in words[1][0]
    assert "content" in words[2][0]


def test_a_command_of_the_user_s_is_told() -> None:
    [(_, [text])] = told([message("user", ShellCommand("ls", "a.txt", 0))])
    assert "$ ls\na.txt" in text


@pytest.mark.parametrize(("rule", "pattern"), [("anthropic", r"[a-zA-Z0-9_-]+"), ("mistral", r"[a-zA-Z0-9]{9}")])
def test_ids_that_a_provider_refuses_are_mapped_the_same_each_time(rule: IdRule, pattern: str) -> None:
    history = [ask(), calls("functions.view:0", "ok_1"), result("functions.view:0"), result("ok_1")]
    able = Abilities(provider="anthropic", ids=rule)
    first, again = (valid_history(history, able) for _ in range(2))
    assert first == again
    ids = [part.id for part in first[1].parts if isinstance(part, ToolCall)]
    assert [part.tool_call_id for each in first for part in each.parts if isinstance(part, ToolResult)] == ids
    assert all(re.fullmatch(pattern, each) for each in ids)


def test_an_id_that_comes_again_is_another_one() -> None:
    history = [ask(), calls("a"), result("a", "1"), calls("a"), result("a", "2")]
    [_, (_, [first]), (_, [(one, _)]), (_, [second]), (_, [(two, content)])] = told(history)
    assert first == one == "a"
    assert second == two != "a"
    assert content == "2"
