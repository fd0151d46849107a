"""A conversation as a Markdown file."""

from __future__ import annotations

import re
from pathlib import Path

from kedge.protocol.messages import ShellCommand, Text, ToolCall
from kedge.protocol.sessions import Session
from kedge.tui.story.page import Page


def export(page: Page, session: Session | None, name: str, directory: str) -> Path:
    """Write it; an existing file is never overwritten. Raises OSError, and RuntimeError for a home that nobody has."""
    title = (session.title if session else "") or "Session"
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "session"
    path = Path(directory, Path(name or f"{slug}.md").expanduser())
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write(f"# {title}\n")
        for message in page.messages.values():
            if message.role == "user":
                file.write("\n## Prompt\n")
            for part in message.parts:
                match part.head:
                    case Text() if message.role != "tool":
                        file.write(f"\n{part.text}\n")
                    case ToolCall() as call:
                        file.write(f"\n`{call.name}` {part.text}\n")
                    case ShellCommand() as shell:
                        file.write(f"\n```\n$ {shell.command}\n{shell.output}\n```\n")
                    case _:
                        pass
    return path
