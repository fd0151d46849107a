"""The ways in which a contender is asked: cold, and beside a server of its own; each in a home of its own, with a file
that the model can know only from reading it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from string import Template
from typing import Any

from bench.peers.setting import Contender, Setting
from bench.peers.warm import NotServed, Served, serving

TOOL_ANSWER = "TOOL-ANSWER-OK"
_NOT_READ = "THE-FILE-WAS-NOT-READ"
_MOST_STEPS = 5  # after which the model has certainly seen the file


@dataclass(frozen=True)
class Side:
    contender: Contender
    is_warm: bool
    tool_prompt: str  # what the model answers with a call
    served: Served | None = None
    failure: str = ""  # why its server is not there


def cold(setting: Setting) -> list[Side]:
    return [Side(each, False, _hide_file(setting, each)) for each in setting.contenders]


def warm(setting: Setting, servers: ExitStack) -> list[Side]:
    """Of those that have a server for their runs; they stay until the stack is left."""
    peers = [each.peer for each in setting.contenders if each.peer.serve]
    return [
        _warm(setting, Contender.ready(peer, setting.directory / "warm", setting.model.base_url), servers)
        for peer in peers
    ]


def _warm(setting: Setting, contender: Contender, servers: ExitStack) -> Side:
    prompt = _hide_file(setting, contender)
    try:
        return Side(contender, True, prompt, servers.enter_context(serving(contender)))
    except NotServed as error:
        return Side(contender, True, prompt, failure=str(error))


def _hide_file(setting: Setting, contender: Contender) -> str:
    """The prompt at which the model asks for the file, and answers right only if it then knows what stands in it."""
    asked, word = secrets.token_hex(6), secrets.token_hex(6)
    (contender.workspace / "hello.txt").write_text(f"hello {word}\n")
    if contender.peer.tool is not None:
        filled = _filled(contender.peer.tool.input, str(contender.workspace))
        call = {"name": contender.peer.tool.name, "input": filled}
        setting.model.on({"text": "", "tool_calls": [call]}, {"text": _NOT_READ}, body=asked)
        setting.model.on(*[{"text": TOOL_ANSWER}] * _MOST_STEPS, body=word)
    return f"Read hello.txt, please. My number is {asked}."


def _filled(fields: Mapping[str, Any], workspace: str) -> dict[str, Any]:
    return {
        name: Template(value).substitute(workspace=workspace) if isinstance(value, str) else value
        for name, value in fields.items()
    }
