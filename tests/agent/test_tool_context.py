"""What tools put aside goes with its session, or with age."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kedge.agent.agent import Agent
from kedge.agent.tool_context import SCRATCH_KEPT_S, remove_old_scratch, scratch_directory
from kedge.config.schema import Config


async def test_a_deleted_session_leaves_nothing_of_what_its_commands_said(tmp_path: Path) -> None:
    agent = Agent(data_dir=tmp_path, environ={}, configure=lambda _directory, _env: Config())
    for session_id in ("gone", "stays"):
        directory = scratch_directory(tmp_path, session_id)
        directory.mkdir(parents=True)
        (directory / "output.txt").write_text("private")
    await agent.session_deleted("gone")
    await agent.session_deleted("never-was")
    assert [each.name for each in (tmp_path / "scratch").iterdir()] == ["stays"]
    await agent.close()


def test_what_nobody_touched_for_a_month_is_removed(tmp_path: Path) -> None:
    for name, age_s in (("old", SCRATCH_KEPT_S + 60), ("new", 60)):
        directory = scratch_directory(tmp_path, name)
        directory.mkdir(parents=True)
        touched = time.time() - age_s
        os.utime(directory, (touched, touched))
    remove_old_scratch(tmp_path)
    assert [each.name for each in (tmp_path / "scratch").iterdir()] == ["new"]
