"""What a run is sent with beside its prompt: durable, part of the same body (P3), of one turn (P5), bounded (P17)."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.bounds import (
    MAX_ATTACHMENTS,
    MAX_DEPTH,
    MAX_IMAGE_BYTES,
    MAX_PROMPT_BYTES,
    MAX_RULE_CHARS,
    MAX_RULES,
    MAX_SCHEMA_BYTES,
)
from kedge.protocol.errors import Conflict, Invalid, KedgeError, TooLarge
from kedge.protocol.messages import File, Image, Text
from kedge.protocol.runs import Attachment, RunOptions
from tests.support.harness import Kedge, states

OPTIONS = RunOptions(
    system="be brief",
    max_steps=3,
    max_cost=0.5,
    output_schema={"type": "object", "big": 10**30, "properties": {"a": {}}},
    mode="plan",
    allow=("bash(git *)",),
    deny=("write(*)",),
)
PNG = b"\x89PNG\r\n\x1a\n"


def deep(levels: int) -> Any:
    value: Any = {"a": 1}
    for _ in range(levels):
        value = {"a": value}
    return value


async def test_turn_gets_the_options_of_its_run_also_after_a_crash(kedge: Kedge) -> None:
    seen: list[RunOptions] = []

    async def turn(ctx: TurnContext) -> None:
        seen.append(ctx.options)
        if len(seen) == 1:
            await kedge.gates.wait("never")

    kedge.turns["prompt"] = turn
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r", options=OPTIONS)
    await kedge.reached("never")
    await kedge.crash_and_start()
    await kedge.end("r")
    assert seen == [OPTIONS, OPTIONS]


async def test_same_options_in_another_order_are_the_same_body_and_others_are_not(kedge: Kedge) -> None:
    session_id = await kedge.session()
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    await kedge.send(session_id, "say x", "r", options=RunOptions(output_schema=one))
    again = await kedge.send(session_id, "say x", "r", options=RunOptions(output_schema=other))
    assert again.replayed
    for options in (RunOptions(), RunOptions(output_schema={"a": 1}), RunOptions(output_schema=one, max_steps=1)):
        with pytest.raises(Conflict):
            await kedge.send(session_id, "say x", "r", options=options)


async def test_prompt_with_other_options_does_not_join_and_one_with_the_same_does(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; wait go; say two", "host", options=OPTIONS)
    await kedge.reached("go")
    await kedge.send(session_id, "say same", "same", on_busy="steer", options=OPTIONS)
    await kedge.send(session_id, "say none", "none", on_busy="steer")
    await kedge.send(session_id, "say other", "other", on_busy="steer", options=RunOptions(max_steps=3))
    kedge.gates.open("go")
    host, same, none, other = await kedge.ends("host", "same", "none", "other")
    assert (host.text, same.text, none.text, other.text) == ("same", "same", "none", "other")
    assert [(await kedge.run(run_id)).merged_into for run_id in ("same", "none", "other")] == ["host", None, None]


@pytest.mark.parametrize(
    ("options", "family", "code"),
    [
        (RunOptions(system="x" * (MAX_PROMPT_BYTES + 1)), TooLarge, "system_too_large"),
        (RunOptions(system="half \ud800"), Invalid, "invalid_text"),
        (RunOptions(output_schema={"a": "x" * MAX_SCHEMA_BYTES}), TooLarge, "schema_too_large"),
        (RunOptions(output_schema=deep(MAX_DEPTH)), Invalid, "invalid_request"),
        (RunOptions(output_schema={"a": "\ud800"}), Invalid, "invalid_text"),
        (RunOptions(allow=("a",) * (MAX_RULES + 1)), Invalid, "invalid_options"),
        (RunOptions(deny=("a" * (MAX_RULE_CHARS + 1),)), Invalid, "invalid_options"),
        (RunOptions(deny=("\ud800",)), Invalid, "invalid_text"),
    ],
    ids=lambda value: "" if isinstance(value, RunOptions) else getattr(value, "__name__", value),
)
async def test_options_over_a_bound_are_refused_and_leave_no_trace(
    kedge: Kedge, options: RunOptions, family: type[KedgeError], code: str
) -> None:
    session_id = await kedge.session()
    before = await kedge.log_frames()
    with pytest.raises(family) as refused:
        await kedge.send(session_id, "say x", "r", options=options)
    assert refused.value.code == code
    assert await kedge.log_frames() == before


async def test_options_at_their_bounds_are_taken(kedge: Kedge) -> None:
    session_id = await kedge.session()
    options = RunOptions(
        system="x" * MAX_PROMPT_BYTES,
        output_schema=deep(MAX_DEPTH - 1),
        allow=("a" * MAX_RULE_CHARS,) * 10,
        deny=("a",) * MAX_RULES,
    )
    await kedge.send(session_id, "say x", "r", options=options)
    assert (await kedge.end("r")).text == "x"


@pytest.mark.parametrize(
    ("attachment", "code"),
    [
        (Attachment("", "text/plain", b"x"), "invalid_attachment"),
        (Attachment("x" * 256, "text/plain", b"x"), "invalid_attachment"),
        (Attachment("\ud800", "text/plain", b"x"), "invalid_text"),
        (Attachment("a", "text", b"x"), "invalid_attachment"),
        (Attachment("a", "text/plain\n", b"x"), "invalid_attachment"),
        (Attachment("a.bmp", "image/bmp", b"BM"), "invalid_attachment"),
        (Attachment("a.png", "image/png", b"GIF89a"), "invalid_attachment"),
        (Attachment("a.webp", "image/webp", b"RIFF0000WAVE"), "invalid_attachment"),
        (Attachment("a.png", "image/png", b""), "invalid_attachment"),
        (Attachment("a.png", "image/png", PNG + bytes(MAX_IMAGE_BYTES)), "attachment_too_large"),
        (Attachment("a.txt", "text/plain", bytes(MAX_PROMPT_BYTES + 1)), "attachment_too_large"),
    ],
)
async def test_attachment_that_no_model_reads_is_refused_and_leaves_no_trace(
    kedge: Kedge, attachment: Attachment, code: str
) -> None:
    session_id = await kedge.session()
    before = await kedge.log_frames()
    with pytest.raises(KedgeError) as refused:
        await kedge.send(session_id, "say x", "r", attachments=(attachment,))
    assert refused.value.code == code
    assert await kedge.log_frames() == before
    with pytest.raises(Invalid):
        await kedge.send(session_id, "say x", "r", attachments=(Attachment("a", "text/plain", b""),) * 101)
    assert MAX_ATTACHMENTS == 100


async def test_attachments_arrive_in_the_message_as_they_were_sent(kedge: Kedge) -> None:
    session_id = await kedge.session()
    files = (
        Attachment("a.txt", "text/plain", b"A"),
        Attachment("b.png", "image/png", PNG),
        Attachment("c.jpg", "image/jpeg", b"\xff\xd8\xff\xe0"),
        Attachment("d.gif", "image/gif", b"GIF89a"),
        Attachment("e.webp", "image/webp", b"RIFF0000WEBP"),
        Attachment("f.svg", "image/svg+xml", b"<svg/>"),
        Attachment("g.pdf", "application/pdf", b"%PDF"),
    )
    await kedge.send(session_id, "say x", "r", attachments=files)
    await kedge.end("r")
    user = (await kedge.messages(session_id))[0]
    assert user.parts == [
        Text("say x"),
        File("a.txt", "text/plain", b"A"),
        *(Image(file.mime_type, file.content, file.file_name) for file in files[1:5]),
        File("f.svg", "image/svg+xml", b"<svg/>"),
        File("g.pdf", "application/pdf", b"%PDF"),
    ]
    assert states(await kedge.log())[-1] == ("r", "completed")
