"""The scripted turn does what its prompt says, and goes on where it was: tests and stories rely on it."""

import asyncio

import pytest

from kedge.engine.scripted import Gates
from kedge.protocol.messages import Message, ToolResult, finish_of, text_of
from tests.support.harness import Kedge
from tests.support.reader import LIMIT_S


def spoken(messages: list[Message]) -> list[str]:
    """The texts of the assistant's messages, and the results of its calls, in order."""
    texts = [text_of(message.parts) for message in messages if message.role == "assistant"]
    results = [part.content for message in messages for part in message.parts if isinstance(part, ToolResult)]
    return [text for text in texts if text] + results


@pytest.mark.parametrize(
    ("script", "text", "error", "code"),
    [
        ("say one two", "one two", None, None),
        ("say one; say two", "two", None, None),
        ("say one\n\n  say two  \n", "two", None, None),
        ("tool grep found it; say done", "done", None, None),
        ("say one; fail no more", "", "no more", "scripted"),
        ("fail at once", "", "at once", "scripted"),
        ("raise deep inside", "", "internal error: RuntimeError: deep inside", "internal"),
        ("exit", "", "internal error: SystemExit: 3", "internal"),
        ("retry spoiled; say fresh", "fresh", None, None),
        ("sleep 0; say rested", "rested", None, None),
        ("frobnicate", "", "the script has no command 'frobnicate'", "scripted"),
    ],
)
async def test_a_script_ends_as_it_says(
    kedge: Kedge, script: str, text: str, error: str | None, code: str | None
) -> None:
    await kedge.send(await kedge.session(), script, "r")
    end = await kedge.end("r")
    assert (end.text, end.error, end.code) == (text, error, code)


@pytest.mark.parametrize(
    ("script", "result", "is_error"),
    [
        ("tool grep two words", "two words ", False),
        ("process exit 0", "exit 0", False),
        ("process exit 3", "exit 3", True),
        ("delegate say from below", "from below", False),
        ("delegate fail below", "below", True),
    ],
)
async def test_a_call_has_its_result(kedge: Kedge, script: str, result: str, is_error: bool) -> None:
    session = await kedge.session()
    await kedge.send(session, script, "r")
    await kedge.end("r")
    parts = [part for message in await kedge.messages(session) for part in message.parts]
    assert [(part.content, part.is_error) for part in parts if isinstance(part, ToolResult)] == [(result, is_error)]


@pytest.mark.parametrize(("action", "result"), [("allow", "shipped"), ("deny", "refused")])
async def test_a_permission_decides_what_the_call_gives(kedge: Kedge, action: str, result: str) -> None:
    session = await kedge.session()
    await kedge.send(session, "ask deploy shipped", "r")
    asked = await kedge.asked()
    await kedge.engine.answer_permission(kedge.workspace_id, asked.id, "allow" if action == "allow" else "deny", "me")
    await kedge.end("r")
    assert spoken(await kedge.messages(session)) == [result]


async def test_a_question_gets_its_answer(kedge: Kedge) -> None:
    session = await kedge.session()
    await kedge.send(session, "question which one", "r")
    asked = await kedge.asked()
    await kedge.engine.answer_question(kedge.workspace_id, asked.id, ["the left one"], "me")
    await kedge.end("r")
    assert spoken(await kedge.messages(session)) == ["answer: ['the left one']"]


async def test_a_resumed_script_goes_on_after_its_last_finished_step(kedge: Kedge) -> None:
    session = await kedge.session()
    await kedge.send(session, "say one; tool grep found; wait gate; say two", "r")
    await kedge.reached("gate")
    await kedge.crash_and_start()
    await kedge.reached("gate")
    kedge.gates.open("gate")
    assert (await kedge.end("r")).text == "two"
    assert spoken(await kedge.messages(session)) == ["one", "two", "found "]


async def test_a_resumed_script_does_not_repeat_a_call_that_had_started(kedge: Kedge) -> None:
    session = await kedge.session()
    await kedge.send(session, "tool make building hang; say on", "r")
    await kedge.seen(lambda event: getattr(event.payload, "text", "") == "hang ")
    await kedge.crash_and_start()
    assert (await kedge.end("r")).text == "on"
    messages = await kedge.messages(session)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    (result,) = messages[2].parts
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert "it was not repeated" in result.content


async def test_a_retry_leaves_its_text_behind_as_interrupted(kedge: Kedge) -> None:
    session = await kedge.session()
    await kedge.send(session, "retry spoiled; say fresh", "r")
    await kedge.end("r")
    finishes = [finish_of(m.parts) for m in await kedge.messages(session) if m.role == "assistant"]
    assert [finish.reason for finish in finishes if finish] == ["interrupted", "end_turn"]


async def test_a_gate_may_be_opened_before_anybody_comes() -> None:
    gates = Gates()
    gates.open("a")
    async with asyncio.timeout(LIMIT_S):
        await gates.wait("a")
        await gates.reached("a")


async def test_a_gate_tells_that_somebody_came() -> None:
    gates = Gates()
    waiting = asyncio.create_task(gates.wait("a"))
    async with asyncio.timeout(LIMIT_S):
        await gates.reached("a")
        assert not waiting.done()
        gates.open("a")
        await waiting
