"""Servers that hang, flood, answer late, grow, or die: they cost their diagnostics, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from kedge.config.schema import LspServerConfig
from kedge.lsp.documents import CHANGED
from tests.lsp.conftest import SCRIPTED, Project

BAD, GOOD = "one\nbad two\n", "one\ntwo\n"
SHORT_S = 0.3  # waits for what does not come


def count_states(project: Project, state: str) -> int:
    return sum(each.state == state for each in project.servers.list_states())


async def begin(project: Project, text: str = GOOD) -> Path:
    path = project.write("a.txt", text)
    await project.servers.find_ready(path, 30)
    return path


async def test_what_a_server_says_of_an_earlier_text_is_not_shown(project: Project) -> None:
    await project.script("late")
    path = await begin(project)
    assert await project.check(path, wait_s=SHORT_S) == []
    project.write("a.txt", BAD)
    assert await project.check(path, wait_s=SHORT_S) == [], "it published the diagnostics of the text before"


async def test_what_comes_late_is_told_with_the_next_result(project: Project) -> None:
    await project.script("unversioned")
    path = await begin(project)
    await project.learn(path)
    project.write("a.txt", BAD)
    assert await project.check(path, wait_s=0) == []
    other = project.write("b.txt", GOOD)
    found = await project.check(other)
    assert [(each.path, each.line) for each in found] == [(path, 2)]


async def test_a_server_without_versions_is_believed_only_behind_an_answer(project: Project) -> None:
    await project.script("unversioned")
    path = await begin(project)
    await project.learn(path)
    for _ in range(3):
        project.write("a.txt", BAD)
        assert [each.line for each in await project.check(path)] == [2]
        project.write("a.txt", GOOD)
        assert await project.check(path) == []


async def test_errors_that_were_there_before_are_not_reported_and_new_ones_once(project: Project) -> None:
    await project.script()
    path = await begin(project, "bad one\n")
    await project.learn(path)
    project.write("a.txt", "new\nbad one\n")  # the same error in another line
    assert await project.check(path) == []
    project.write("a.txt", "new\nbad one\nbad two\n")
    assert [each.line for each in await project.check(path)] == [3]
    project.write("a.txt", "newer\nbad one\nbad two\n")
    assert await project.check(path) == []


@pytest.mark.parametrize("behavior", ["silent", "die", "deaf"])
async def test_a_server_that_does_not_answer_costs_a_bounded_time_and_no_error(project: Project, behavior: str) -> None:
    await project.script(behavior)
    path = project.write("a.txt", BAD)
    await project.servers.find_ready(path, SHORT_S)
    async with asyncio.timeout(20):
        assert await project.check(path, wait_s=SHORT_S) == []


async def test_lines_that_are_no_messages_are_skipped(project: Project) -> None:
    await project.script("garbage")
    path = await begin(project, BAD)
    assert [each.line for each in await project.check(path)] == [2]


async def test_a_server_that_floods_is_ended(project: Project) -> None:
    await project.script("flood")
    path = await begin(project)
    await project.check(path, wait_s=SHORT_S)
    await project.until(lambda: count_states(project, "failed") == 1)
    await project.until(lambda: not project.groups)


async def test_a_server_that_grows_is_ended_and_says_why(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.lsp.manager.CHECK_MEMORY_S", 0.1)
    project.open(max_memory_bytes=300 * 1024 * 1024)
    await project.script("grow")
    path = await begin(project)
    await project.check(path, wait_s=SHORT_S)
    await project.until(lambda: count_states(project, "failed") == 1)
    assert "memory" in project.servers.list_states()[0].error


async def test_a_killed_server_is_started_again_after_a_pause(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.lsp.manager.RESTART_AFTER_S", (0.2, 0.2))
    await project.script()
    path = await begin(project)
    pid = project.servers.list_states()[0].pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    await project.until(lambda: count_states(project, "failed") == 1)
    assert await project.check(path, wait_s=SHORT_S) == []
    project.write("a.txt", BAD)
    while not (found := await project.check(path)):
        await project.servers.find_ready(path, 5)
    assert [each.line for each in found] == [2]


async def test_a_server_that_always_dies_is_not_started_for_every_call(project: Project) -> None:
    await project.use(scripted=LspServerConfig(command="/bin/false", file_types=("txt",)))
    path = project.write("a.txt", BAD)
    started = 0
    for _ in range(20):
        await project.servers.find_ready(path, 5)
        started = max(started, len(project.groups))
    assert count_states(project, "failed") == 1
    assert started <= 1


async def test_an_idle_server_is_ended_and_the_next_use_starts_another(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.lsp.manager.CHECK_MEMORY_S", 0.1)
    project.open(idle_s=0.2)
    await project.script()
    path = await begin(project)
    await project.until(lambda: count_states(project, "stopped") == 1)
    await project.servers.find_ready(path, 30)
    assert count_states(project, "ready") == 1


async def test_a_file_that_a_command_changed_or_removed_is_seen(project: Project) -> None:
    await project.script()
    path, other = await begin(project), project.write("b.txt", GOOD)
    for each in (path, other):
        await project.learn(each)
    project.write("a.txt", BAD)  # as `sed` or `git checkout` do
    project.reporter.note_changes({path: CHANGED})
    await project.reporter.wait()
    assert [(each.path, each.line) for each in await project.check(other)] == [(path, 2)]
    path.unlink()
    assert await project.check(other) == []
    assert [document.path for _, document in project.servers.open_documents()] == [other]


async def test_servers_of_another_configuration_are_ended(project: Project) -> None:
    await project.script()
    await begin(project)
    await project.script("garbage")
    assert project.servers.list_states() == []
    await project.use()
    assert await project.servers.find_ready(project.directory / "a.txt", 1) == []


async def test_each_root_has_a_server_and_only_so_many_live(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.lsp.manager.MAX_SERVERS", 2)
    args = (str(SCRIPTED),)
    config = LspServerConfig(command=sys.executable, args=args, file_types=("txt",), root_markers=("mark",))
    await project.use(scripted=config)
    for name in ("a", "b", "c"):
        project.write(f"{name}/mark", "")
        path = project.write(f"{name}/x/file.txt", GOOD)
        await project.start(path)
    states = project.servers.list_states()
    assert [state.root.name for state in states] == ["b", "c"]


async def test_a_program_of_the_project_is_used_only_if_it_is_trusted(project: Project) -> None:
    from kedge.config.schema import Config

    program = project.write("node_modules/.bin/vscode-json-language-server", "#!/bin/sh\ntouch started\n")
    program.chmod(0o755)
    path = project.write("a.json", "{")
    await project.servers.configure(Config(), is_trusted=False)
    await project.servers.find_ready(path, SHORT_S)
    assert project.servers.list_states() == []
    await project.servers.configure(Config(), is_trusted=True)
    await project.servers.find_ready(path, 10)
    await project.until(lambda: (project.directory / "started").exists())
