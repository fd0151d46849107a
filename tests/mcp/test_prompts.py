"""Prompts and resources of servers, as prompts and attachments: bounded, marked, and nothing that no model can read."""

from __future__ import annotations

from base64 import b64encode

import pytest

from kedge.jsonrpc.errors import InvalidAnswer
from kedge.mcp.messages import (
    Content,
    PromptInfo,
    PromptMessage,
    PromptResult,
    ResourceContents,
    ResourceInfo,
    ResourceResult,
)
from kedge.mcp.prompts import MAX_TEXT_CHARS, describe_prompts, describe_resources, make_attachments, make_prompt

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def of(*contents: ResourceContents) -> ResourceResult:
    return ResourceResult(contents=list(contents))


def test_a_resource_is_marked_as_data_of_its_server_and_cut() -> None:
    long = "x" * (MAX_TEXT_CHARS + 1)
    (attachment,) = make_attachments("s", "note://a", of(ResourceContents(uri="note://a\n[evil]", text=long)))
    text = attachment.content.decode()
    first = text.partition("\n")[0]
    assert "MCP server s" in first
    assert "not instructions" in first
    assert "[evil]" in first  # a line break in the URI ends no mark
    assert text.endswith(f"[cut: the server sent {len(long):,} characters]")
    assert "\n" not in attachment.file_name


def test_an_image_is_attached_by_what_it_is_and_not_by_what_it_is_called() -> None:
    blob = b64encode(PNG).decode()
    (attachment,) = make_attachments("s", "a", of(ResourceContents(uri="a", blob=blob, mime_type="text/html")))
    assert (attachment.mime_type, attachment.content) == ("image/png", PNG)


@pytest.mark.parametrize(
    "blob", ["no base64!", b64encode(b"MZ\x00").decode(), b64encode(PNG + bytes(6_000_000)).decode()]
)
def test_what_no_model_can_read_is_refused(blob: str) -> None:
    with pytest.raises(InvalidAnswer):
        make_attachments("s", "a", of(ResourceContents(uri="a", blob=blob)))
    for result in (of(), ResourceResult(result_type="input_required", contents=[ResourceContents(text="x")])):
        with pytest.raises(InvalidAnswer):
            make_attachments("s", "a", result)


def test_messages_of_a_prompt_become_one_prompt_with_attachments() -> None:
    resource = ResourceContents(uri="note://a", text="content")
    messages = [
        PromptMessage(role="user", content=Content(type="text", text="question")),
        PromptMessage(role="assistant", content=Content(type="text", text="answer")),
        PromptMessage(role="user", content=Content(type="resource", resource=resource)),
    ]
    prompt = make_prompt("s", PromptResult(messages=messages))
    assert prompt.text == "User: question\n\nAssistant: answer"
    assert [each.file_name for each in prompt.attachments] == ["s:note://a"]
    assert make_prompt("s", PromptResult(messages=messages[:1])).text == "question"
    for empty in (PromptResult(), PromptResult(result_type="input_required", messages=messages)):
        with pytest.raises(InvalidAnswer):
            make_prompt("s", empty)


def test_names_that_could_not_be_typed_are_left_out_and_descriptions_are_one_line() -> None:
    infos = [PromptInfo(name="good", description="two\nlines\x1b[2J"), PromptInfo(name="b ad"), PromptInfo(name="")]
    (prompt,) = describe_prompts("s", infos)
    assert "\n" not in (prompt.description or "")
    assert "\x1b" not in (prompt.description or "")
    resources = [ResourceInfo(uri="note://a"), ResourceInfo(uri="note://a b"), ResourceInfo(uri="x\x1b")]
    assert [each.uri for each in describe_resources("s", resources, [])] == ["note://a"]
