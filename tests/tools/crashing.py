"""A server that runs one command and dies where it is told: `python -m tests.tools.crashing DIRECTORY COMMAND`.

The command becomes a job if it begins with `&`. The server's own death is armed with KEDGE_FAILPOINT; with
TEST_NO_CGROUPS it makes no control groups, TEST_SANDBOX names what holds the command.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from kedge.config.schema import SandboxConfig, SandboxMode
from kedge.engine.engine import Engine
from kedge.engine.processes import cgroups
from kedge.protocol.runs import Submission
from kedge.store.sqlite.store import SqliteStore, random_id
from kedge.tools.process.command import WorkspaceJobs
from tests.tools.turns import BashTurn


async def main(root: Path, command: str) -> None:
    mode = msgspec.convert(os.environ.get("TEST_SANDBOX", "off"), SandboxMode)
    turn = BashTurn(WorkspaceJobs(), root / "scratch", SandboxConfig(mode=mode))
    engine = Engine(SqliteStore.open(root / "data"), {"prompt": turn}, new_id=random_id)
    await engine.start()
    workspace_id = (await engine.open_workspace(root / "workspace")).id
    session_id = (await engine.create_session(workspace_id, "")).id
    receipt = await engine.runs.accept(workspace_id, Submission(session_id=session_id, prompt=command))
    await engine.runs.wait_end(workspace_id, receipt.run_id)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if "TEST_NO_CGROUPS" in os.environ:
        setattr(cgroups, "home", lambda: None)  # noqa: B010 - it is no variable
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
