"""Which models a run could use."""

from __future__ import annotations

from pathlib import Path

from kedge.protocol.environment import environment_of
from kedge.server.operations import Call, Reply


async def list_models(call: Call) -> Reply:
    directory = Path(call.engine.feed(call["workspace_id"]).path)
    return Reply(await call.context.agent.models(directory, environment_of(call.headers)))
