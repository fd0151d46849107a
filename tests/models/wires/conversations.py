"""Conversations as they may lie in a store after anything happened, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from kedge.protocol.messages import (
    File,
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
from tests.models.wires.vendors import OWN_LONG_ID

REASONS: tuple[FinishReason, ...] = (
    "end_turn",
    "tool_use",
    "max_tokens",
    "content_filter",
    "canceled",
    "error",
    "interrupted",
    "unknown",
)
# Few ids, so that they meet: good ones, one of another provider's, a long one, none at all.
IDS = st.sampled_from(["a", "b", "c", "toolu_01", "functions.view:0", OWN_LONG_ID, ""])
WORDS = st.sampled_from(["", " ", "\n", "one", "two ", "é 😀", "three\n\nfour"])
INPUTS = st.sampled_from(['{"path": "a"}', "{}", "", "{", "[1]", '"text"', '{"a": {"b": [1, 2]}}', "nonsense"])
MODELS = st.sampled_from(
    [None, "anthropic/claude", "openai/gpt", "deepseek/v4", "gemini/gemini-3.8-flash", "gemini/gemini-2.5-pro"]
)
IMAGES = st.builds(
    Image,
    st.sampled_from(["image/png", "image/jpeg", "image/tiff"]),
    st.sampled_from([b"png", b"", b"x" * (4 * 1024 * 1024)]),
)
RESULTS = st.builds(ToolResult, IDS, st.just("view"), WORDS, st.booleans())
CALLS = st.builds(ToolCall, IDS, st.sampled_from(["view", "bash", "a.b", "", "x" * 100]), INPUTS, st.booleans())
SIGNATURES = st.sampled_from(
    [
        None,
        "sig",
        "reasoning_content",
        '0:extra_content:{"google": 1}',
        'responses:{"id":"rs_1"}',
        'responses:{"id":"rs_1","encrypted_content":"c2VjcmV0"}',
        'responses:{"id":"rs_2","is_raw":true}',
        'responses:{"phase":"commentary"}',
        "responses:{",
        "gemini:call:Y2FsbA==",
        "gemini:text-0:dGV4dA==",
        "gemini:text-3:dGV4dA==",
        "gemini:thought:aG0=",
    ]
)
THOUGHTS = st.builds(Reasoning, WORDS, SIGNATURES, st.booleans())
KINDS = st.sampled_from(["text/plain", "application/zip", "application/pdf"])
FILES = st.builds(File, st.just("a.txt"), KINDS, st.sampled_from([b"h\xe9", b""]))
COMMANDS = st.builds(ShellCommand, st.just("ls"), WORDS, st.sampled_from([None, 0, 1]))

USER_PARTS: st.SearchStrategy[list[Part]] = st.lists(st.builds(Text, WORDS) | IMAGES | FILES | COMMANDS, max_size=3)
TOOL_PARTS: st.SearchStrategy[list[Part]] = st.lists(RESULTS | RESULTS | IMAGES, max_size=3)
ANSWER_PARTS: st.SearchStrategy[list[Part]] = st.lists(st.builds(Text, WORDS) | THOUGHTS | CALLS, max_size=4)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role: Role = draw(st.sampled_from(["user", "assistant", "tool", "assistant", "tool"]))
    parts = draw({"user": USER_PARTS, "assistant": ANSWER_PARTS, "tool": TOOL_PARTS}[role])
    is_answer = role == "assistant"
    if is_answer and draw(st.integers(0, 9)):
        parts = [*parts, Finish(draw(st.sampled_from(REASONS)))]
    return Message(
        id=f"m{draw(st.integers(0, 10**6))}",
        session_id="s",
        run_id="r",
        role=role,
        parts=parts,
        created_at=0.0,
        model=draw(MODELS) if is_answer else None,
        summary=is_answer and draw(st.integers(0, 19)) == 0,
    )


def histories(max_size: int = 14) -> st.SearchStrategy[list[Message]]:
    return st.lists(messages(), max_size=max_size)
