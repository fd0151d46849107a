"""What fills the context window of a session: estimated sizes of the parts of its next request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.agent.context_files import format_file
from kedge.agent.context_window import fit_history
from kedge.agent.history_size import count_part_chars
from kedge.agent.notes import Note
from kedge.agent.surroundings import Surroundings
from kedge.agent.system_prompt import Role, build_system_prompt
from kedge.agent.tool_params import describe_tool
from kedge.models.values import ModelInfo, StepRequest
from kedge.models.wires.history import is_summary
from kedge.protocol.api import ContextKind, ContextPart, SessionContext
from kedge.protocol.messages import Message, Reasoning, Text, finish_of
from kedge.store.port import StoredContext
from kedge.tools.port import Tool


def report_context(
    stored: StoredContext, info: ModelInfo, model: str | None, tools: Sequence[Tool], summarize_at: float
) -> SessionContext:
    """Measure the parts of the session's next request: characters, and tokens in the ratio of the last step."""
    first = msgspec.json.decode(stored.surroundings, type=Surroundings) if stored.surroundings else None
    specs = [describe_tool(tool) for tool in tools] if info.tools else []
    role = Role(is_tiny=info.is_tiny, has_tools=bool(specs))
    system = build_system_prompt(role, first) if first else ""
    files = sum(len(format_file(each)) for each in first.files) if first and not info.is_tiny else 0
    mcp = len(stored.tools or b"")
    notes = sum(len(note.text) + len(note.context) for note in map(_decode_note, stored.notes.values()))
    request = StepRequest(system=system, history=list(stored.history), tools=specs)
    fitted = fit_history(request, info)
    chars: dict[ContextKind, int] = {
        "system": len(system) - files,
        "instructions": files,
        "tools": len(msgspec.json.encode(specs)) if specs else 0,
        "mcp_tools": mcp,
        "notes": notes,
        **_count_conversation(fitted.messages),
    }
    total = sum(chars.values())
    used = fitted.tokens
    is_measured = any(_has_usage(message) for message in stored.history)
    if not is_measured:  # nothing was counted by the provider yet
        used = round(total * fitted.tokens_per_char)
    ratio = used / total if total else 0.0
    window = info.context_window
    return SessionContext(
        model=_complete_name(model, stored.history),
        context_window=window,
        used_tokens=used,
        free_tokens=None if window is None else max(window - used, 0),
        summarize_at_tokens=None if window is None else round(window * summarize_at),
        estimated=not is_measured,
        parts=[ContextPart(kind=kind, tokens=round(count * ratio), chars=count) for kind, count in chars.items()],
    )


def _complete_name(model: str | None, history: Sequence[Message]) -> str | None:
    """Return the name of the model. A provider alone stands for its first model, which the last answer names."""
    if model is None or "/" in model:
        return model
    used = (message.model for message in reversed(history) if message.model)
    return next((name for name in used if name.startswith(f"{model}/")), model)


def _count_conversation(messages: Sequence[Message]) -> dict[ContextKind, int]:
    chars: dict[ContextKind, int] = dict.fromkeys(("summary", "prompts", "answers", "reasoning", "tool_results"), 0)
    for message in messages:
        for part in message.parts:
            kind: ContextKind = "tool_results"  # with the calls that they answer
            if is_summary(message):
                kind = "summary"
            elif message.role == "user":
                kind = "prompts"
            elif isinstance(part, Reasoning):
                kind = "reasoning"
            elif isinstance(part, Text):
                kind = "answers"
            chars[kind] += count_part_chars(part)
    return chars


def _has_usage(message: Message) -> bool:
    finish = finish_of(message.parts)
    return finish is not None and finish.usage is not None and finish.usage.prompt_tokens > 0


def _decode_note(body: bytes) -> Note:
    return msgspec.json.decode(body, type=Note)
