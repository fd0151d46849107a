"""Messages as Markdown, for the commands and the interface."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def render_markdown(message: dict[str, Any]) -> str:
    """The message under a heading; empty for a message without text."""
    text = "\n\n".join(text for part in message["parts"] if (text := _render_part(part)))
    heading = "Summary of the conversation so far" if message.get("summary") else message["role"]
    return f"## {heading}\n\n{text}\n" if text else ""


def _render_part(part: dict[str, Any]) -> str:
    match part["type"]:
        case "text":
            return part["text"]
        case "reasoning":
            return "\n".join(f"> {line}" for line in part["text"].splitlines())
        case "tool_call":
            return f"`{part['name']}` {part['input']}"
        case "tool_result":
            return _fence(part["content"])
        case "shell_command":
            return _fence(f"$ {part['command']}\n{part['output']}")
        case "image" | "file":
            return f"({part.get('name') or part['type']}, {part['mime_type']})"
        case "finish" if part["reason"] not in ("end_turn", "tool_use"):
            return f"*({part['reason']}{': ' + part['message'] if part.get('message') else ''})*"
        case _:
            return ""


def _fence(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"
