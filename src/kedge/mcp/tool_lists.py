"""The tools that each server offered last, in the data directory: a first request has them before the server answers.

A list belongs to what is started or called, not to a name: another command, address or environment has none yet.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kedge.config.schema import McpServerConfig
from kedge.mcp.messages import ToolInfo

log = logging.getLogger(__name__)

MAX_LISTS = 100  # the least recently written ones go
MAX_LIST_BYTES = 4 * 1024 * 1024


class ToolLists:
    """Its methods block, and raise nothing: a list that cannot be read or written is one that nobody knows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, config: McpServerConfig) -> list[ToolInfo] | None:
        """Return the tools that a server with this configuration offered last."""
        try:
            with self._file_of(config).open("rb") as file:
                data = file.read(MAX_LIST_BYTES + 1)
            return msgspec.json.decode(data, type=list[ToolInfo])
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeError) as error:
            log.info("a list of MCP tools cannot be read: %s", error)
            return None

    def write(self, config: McpServerConfig, tools: Sequence[ToolInfo]) -> None:
        data = msgspec.json.encode(tools)
        if len(data) > MAX_LIST_BYTES:
            return
        file = self._file_of(config)
        unfinished = file.with_suffix(f".{os.getpid()}.unfinished")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.write_bytes(data)
            unfinished.replace(file)
            self._remove_oldest()
        except OSError as error:
            log.warning("a list of MCP tools cannot be kept: %s", error)

    def _remove_oldest(self) -> None:
        files = sorted(self._directory.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[MAX_LISTS:]:
            file.unlink(missing_ok=True)

    def _file_of(self, config: McpServerConfig) -> Path:
        """The tools that the configuration chooses, limits and logins do not matter."""
        same = [config.command, config.args, config.cwd, sorted(config.env.items())]
        same += [config.url, sorted(config.headers.items())]
        return self._directory / f"{hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:32]}.json"
