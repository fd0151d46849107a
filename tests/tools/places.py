"""Where a tool is tried: a real directory, and everything that a call may ask of the agent, kept to be looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.config.schema import Config
from kedge.protocol.requests import Answer
from kedge.tools.errors import ToolError


class TestPlace:
    """A `ToolContext` without an agent behind it."""

    __test__ = False

    def __init__(self, directory: Path, *, env: Mapping[str, str] | None = None, sees_images: bool = True) -> None:
        self.directory = Path(os.path.realpath(directory))
        self.env = dict(os.environ if env is None else env)
        self.config = Config()
        self.scratch = self.directory.parent / f"{self.directory.name}-scratch"
        self.session_id = "session"
        self.run_id = "run"
        self.call_id = "call"
        self.sees_images = sees_images
        self.known_files: dict[str, str] = {}
        self.shown: list[str] = []

    def write(self, text: str) -> None:
        self.shown.append(text)

    async def process_started(self, pid: int) -> object:
        return pid

    async def process_ended(self, group: object) -> None:
        pass

    async def delegate(self, prompt: str, title: str) -> str:
        raise ToolError("there are no sub-agents here")

    async def question(self, questions: list[dict[str, Any]]) -> Answer:
        return Answer(action="cancel", by="test")
