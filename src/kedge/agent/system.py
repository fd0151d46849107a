"""What the model is told about itself and its place."""

from __future__ import annotations

from datetime import date
from functools import cache
from pathlib import Path
from string import Template


def system_prompt(directory: Path, today: date) -> str:
    """The date without the time: a prompt that stays the same is read from the provider's cache."""
    return _template().substitute(directory=directory, date=today.isoformat())


@cache
def _template() -> Template:
    return Template((Path(__file__).parent / "prompts" / "system.md").read_text(encoding="utf-8"))
