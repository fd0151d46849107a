"""P17: over a bound there is a clear error and no side effect. P18: no clock orders anything."""

from __future__ import annotations

import pytest

from kedge.protocol.bounds import MAX_OPEN_RUNS, MAX_PROMPT_BYTES
from kedge.protocol.errors import Invalid, KedgeError, TooLarge, TooMany
from kedge.protocol.runs import Attachment
from tests.support.harness import Kedge

TEXT = Attachment("notes.txt", "text/plain", b"do this")
IMAGE = Attachment("shot.png", "image/png", b"\x89PNG")


async def refused(kedge: Kedge, session_id: str, prompt: str, **fields: object) -> KedgeError:
    """The error of a submit; nothing may be left of it."""
    before = await kedge.log_frames()
    with pytest.raises(KedgeError) as error:
        await kedge.send(session_id, prompt, **fields)  # type: ignore[arg-type]
    assert await kedge.log_frames() == before
    assert not (await kedge.store.session_status(kedge.workspace_id, session_id)).is_busy
    return error.value


async def test_prompt_of_4_mib_is_accepted_and_one_byte_more_is_not(kedge: Kedge) -> None:
    session_id = await kedge.session()
    largest = "say " + "é" * ((MAX_PROMPT_BYTES - 4) // 2)
    assert len(largest.encode()) == MAX_PROMPT_BYTES == 4 * 1024 * 1024
    error = await refused(kedge, session_id, largest + "x")
    assert (type(error), error.code) == (TooLarge, "prompt_too_large")
    receipt = await kedge.send(session_id, largest)
    assert (await kedge.end(receipt.run_id)).text == largest[4:]


@pytest.mark.parametrize("prompt", ["", " ", "\n\t ", "\u2003\u2028", "\x1f"])
async def test_blank_prompt_is_refused(kedge: Kedge, prompt: str) -> None:
    session_id = await kedge.session()
    for attachments in ((), (IMAGE,)):
        error = await refused(kedge, session_id, prompt, attachments=attachments)
        assert (type(error), error.code) == (Invalid, "empty_prompt")


async def test_blank_prompt_with_a_text_attachment_is_accepted(kedge: Kedge) -> None:
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, " ", attachments=(TEXT,))
    assert (await kedge.end(receipt.run_id)).error is None


async def test_summarising_needs_no_prompt(kedge: Kedge) -> None:
    receipt = await kedge.send(await kedge.session(), "", kind="summarize")
    assert (await kedge.end(receipt.run_id)).error is None


async def test_prompt_that_is_no_text_is_refused(kedge: Kedge) -> None:
    error = await refused(kedge, await kedge.session(), "half a \ud83d")
    assert (type(error), error.code) == (Invalid, "invalid_text")


@pytest.mark.parametrize(
    "run_id", ["", "-a", "_a", "a b", "a/b", "a.b", "ä", "a\n", "\na", "a" * 129, "..", "a\x00", "\u0661"]
)
async def test_bad_run_id_is_refused(kedge: Kedge, run_id: str) -> None:
    error = await refused(kedge, await kedge.session(), "say hello", run_id=run_id)
    assert (type(error), error.code) == (Invalid, "invalid_run_id")


@pytest.mark.parametrize("run_id", ["a", "7", "A-_", "a" * 128])
async def test_good_run_id_is_accepted(kedge: Kedge, run_id: str) -> None:
    await kedge.send(await kedge.session(), "say hello", run_id)
    assert (await kedge.end(run_id)).text == "hello"


async def test_100_open_runs_and_not_one_more(kedge: Kedge) -> None:
    session_id = await kedge.session()
    for number in range(MAX_OPEN_RUNS):
        await kedge.send(session_id, "wait go" if number == 0 else "sleep 0", f"r{number}")
    assert MAX_OPEN_RUNS == 100
    before = await kedge.log_frames()
    for on_busy in ("queue", "steer", "interrupt"):
        with pytest.raises(TooMany) as error:
            await kedge.send(session_id, "say hello", "over", on_busy=on_busy)
        assert error.value.code == "too_many_runs"
    assert not (await kedge.run("r0")).cancel_requested
    assert (await kedge.send(session_id, "sleep 0", "r99")).replayed  # what is known needs no room
    assert len(await kedge.log_frames()) - len(before) <= 2  # the start of r0 at most
    other = await kedge.send(await kedge.session(), "say elsewhere")
    assert (await kedge.end(other.run_id)).text == "elsewhere"

    await kedge.engine.store.drop_queued(kedge.workspace_id, session_id, "r99")
    await kedge.send(session_id, "say hello", "over")
    await kedge.engine.store.drop_queued(kedge.workspace_id, session_id, None)
    await kedge.cancel(session_id)
    await kedge.end("r0")


async def test_title_is_bounded(kedge: Kedge) -> None:
    with pytest.raises(Invalid):
        await kedge.session("x" * 201)
    assert await kedge.session("x" * 200)


class TestClocks:
    """P18: order and identity come from seq."""

    async def test_clock_that_goes_backwards_changes_no_order(self, kedge: Kedge) -> None:
        sessions: list[str] = []
        for number in range(5):
            kedge.clock.ahead_s = -number * 86_400.0
            sessions.append(await kedge.session(f"session {number}"))
        session_id = sessions[0]
        await kedge.send(session_id, "wait go; say 0", "r0")
        await kedge.reached("go")
        for number in range(1, 5):
            kedge.clock.ahead_s -= 86_400.0
            await kedge.send(session_id, f"say {number}", f"r{number}")
        kedge.gates.open("go")
        await kedge.end("r4")

        assert [run.run_id for run in await kedge.store.runs(kedge.workspace_id)] == [f"r{n}" for n in range(5)]
        said = [(message.run_id, message.role) for message in await kedge.messages(session_id)]
        assert said == [(f"r{n}", role) for n in range(5) for role in ("user", "assistant")]
        listed = [session.id for session in await kedge.store.sessions(kedge.workspace_id)]
        assert listed == [sessions[0], *reversed(sessions[1:])]  # newest activity first

    async def test_recovery_and_replay_do_not_look_at_the_clock(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        await kedge.send(session_id, "wait go; say a", "a")
        await kedge.send(session_id, "say b", "b")
        await kedge.reached("go")
        kedge.clock.ahead_s = -365 * 86_400.0
        await kedge.crash_and_start()
        kedge.gates.open("go")
        a, b = await kedge.ends("a", "b")
        assert (a.text, b.text) == ("a", "b")
        assert (await kedge.send(session_id, "say b", "b")).replayed
