"""A conversation as a Markdown file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kedge.client.markdown import as_markdown
from kedge.protocol.messages import Message


def export(messages: Iterable[Message], title: str, name: str, directory: str) -> Path:
    """Write it; an existing file is never overwritten. Raises OSError, and RuntimeError for a home that nobody has."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "session"
    path = Path(directory, Path(name or f"{slug}.md").expanduser())
    texts = [as_markdown(msgspec.to_builtins(message)) for message in messages]
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write("\n".join([f"# {title or 'Session'}\n", *filter(None, texts)]))
    return path
