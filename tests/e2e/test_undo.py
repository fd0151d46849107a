"""Undo as its user sees it: `kedge run` changes a repository with real tools, `kedge session undo` brings it back."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.client.command import Done, Kedge
from tests.e2e.home import Home, asking
from tests.e2e.project import Project, bash, call, step
from tests.server.client import done
from tests.server.process import Server
from tests.support.file_turn import tree_of
from tests.support.model_control import ModelControl

WORK = (
    step(call("view", path="shop/price.py")),
    step(call("edit", path="shop/price.py", old_string="sum(prices) - 1", new_string="sum(prices)")),
    step(call("write", path="notes/why.md", content="It took 1 away.\n")),
    step(bash("rm README.md && mkdir tools && printf '#!/bin/sh\\n' > tools/run && chmod +x tools/run")),
)


def session(project: Project, *words: str) -> Done:
    return project.kedge("session", *words)


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    project = Project(server, models, tmp_path / "shop")
    (project.directory / "README.md").write_text("# Shop\n")
    return project


def test_a_whole_task_is_undone_redone_and_shown(project: Project) -> None:
    before, index = tree_of(project.directory), (project.directory / ".git/index").read_bytes()
    done = project.run(project.prompt(*WORK, text="Mended."), "-y")
    assert (done.code, done.out) == (0, "Mended.\n"), done
    after = tree_of(project.directory)
    assert after != before
    listed = session(project, "files")
    assert listed.out.splitlines() == [
        "STATUS    LINES  FILE",
        "deleted   +0 -1  README.md",
        "created   +1 -0  notes/why.md",
        "modified  +1 -1  shop/price.py",
        "created   +1 -0  tools/run",
    ], listed
    (run,) = project.client.get(f"{project.workspace}/runs").json["runs"]
    assert session(project, "files", "--run", run["run_id"][:5]).out == listed.out
    unknown = session(project, "files", "--run", "none")
    assert (unknown.code, unknown.out) == (2, ""), unknown
    diff = session(project, "diff")
    assert "-    return sum(prices) - 1\n+    return sum(prices)\n" in diff.out, diff
    dry = session(project, "undo", "--dry-run")
    assert dry.out.splitlines() == [
        "created   README.md  +1 -0",
        "deleted   notes/why.md  +0 -1",
        "modified  shop/price.py  +1 -1",
        "deleted   tools/run  +0 -1",
    ], dry
    assert tree_of(project.directory) == after
    undone = session(project, "undo")
    assert undone.code == 0, undone
    assert tree_of(project.directory) == before
    assert (project.directory / ".git/index").read_bytes() == index
    listed = session(project, "files")
    assert (listed.code, listed.out) == (0, "")
    assert listed.err, "says that there are none"
    redone = session(project, "redo")
    assert redone.code == 0, redone
    assert tree_of(project.directory) == after


def test_a_diff_in_a_file_has_the_characters_that_the_file_has(project: Project) -> None:
    line = "Pourquoi\u00a0? \u3000\u200d\u00ad"
    assert project.run(project.prompt(step(call("write", path="odd.txt", content=f"{line}\n"))), "-y").code == 0
    assert session(project, "diff").out.endswith(f"+{line}\n")


def test_what_a_person_changed_since_is_named_and_kept(project: Project) -> None:
    project.run(project.prompt(*WORK, text="Mended."), "-y")
    (project.directory / "shop/price.py").write_text("by hand\n")
    refused = session(project, "undo")
    assert refused.code == 4, refused
    assert "shop/price.py" in refused.err
    assert (project.directory / "shop/price.py").read_text() == "by hand\n"
    found = done(project.client.get(f"{project.workspace}/sessions"))["sessions"][0]
    answer = project.client.post(f"{project.workspace}/sessions/{found['id']}/undo", {})
    assert answer.status == 409
    assert {"path": "shop/price.py", "status": "modified", "obstacle": "changed"} in answer.json["files"], answer
    forced = session(project, "undo", "--force", "--json")
    assert forced.code == 0, forced
    assert json.loads(forced.out)["undone_from"]
    session(project, "redo")
    assert (project.directory / "shop/price.py").read_text() == "by hand\n"


def test_a_fork_has_the_conversation_and_goes_its_own_way(project: Project) -> None:
    project.run(project.prompt(*WORK, text="Mended."), "-y")
    forked = session(project, "fork", "--json")
    assert forked.code == 0, forked
    fork = json.loads(forked.out)
    assert fork["title"].endswith(" (fork)")
    shown = session(project, "show", fork["id"])
    assert "Mended." in shown.out, shown
    went_on = project.run(project.prompt(text="I remember."), "-y", "-s", fork["id"])
    assert (went_on.code, went_on.out) == (0, "I remember.\n"), went_on


def test_an_undo_names_what_it_takes_back_also_when_no_file_changes(project: Project) -> None:
    project.run(project.prompt(text="Hello."), "-y", "Greet me.")
    dry = session(project, "undo", "--dry-run")
    assert dry.out.startswith("No file changes; "), dry
    assert "Greet me." in dry.out, dry
    found = done(project.client.get(f"{project.workspace}/sessions"))["sessions"][0]
    shell = f"{project.workspace}/agent/sessions/{found['id']}/shell"
    run = done(project.client.post(shell, {"command": "echo hello"}), 202)
    assert done(project.client.get(f"{project.workspace}/runs/{run['run_id']}?wait=30"))["state"] == "completed"
    assert session(project, "undo", "--dry-run").out.endswith(": !echo hello\n")


def test_a_run_that_was_undone_is_listed_as_such(project: Project) -> None:
    project.run(project.prompt(text="Stays."), "-y")
    project.run(project.prompt(text="Goes."), "-y", "-C")
    assert session(project, "undo").code == 0
    listed = done(project.client.get(f"{project.workspace}/runs"))["runs"]
    assert [run.get("undone", False) for run in listed] == [False, True]
    assert done(project.client.get(f"{project.workspace}/runs/{listed[1]['run_id']}"))["undone"]
    assert session(project, "redo").code == 0
    assert not any("undone" in run for run in done(project.client.get(f"{project.workspace}/runs"))["runs"])


def test_an_undo_whose_server_dies_when_it_is_done_takes_back_nothing_more(home: Home, tmp_path: Path) -> None:
    """Sent again to the next server, it would take back another prompt."""
    server = Server(home, home.popen("serve", env={"KEDGE_FAILPOINT": "finish_undo.published=kill"}, module="kedge"))
    kedge = Kedge(home, tmp_path)
    for name in ("first", "second"):
        assert kedge.run("-q", *(["-C"] if name == "second" else []), asking(text=name)).code == 0
    undone = kedge("session", "undo")
    assert server.left() == -signal.SIGKILL
    assert undone.code == 3, undone
    assert "may or may not" in undone.err
    session_id = json.loads(kedge("session", "list", "--json").out.splitlines()[0])["id"]
    shown = kedge("session", "show", session_id).out
    assert asking(text="first") in shown
    assert asking(text="second") not in shown


SERVE = bash("touch .git/started; while test ! -e .git/over; do sleep 0.05; done", run_in_background=True)


@pytest.fixture
def job(project: Project) -> Generator[str]:
    """The session of a background job that is alive, and ends with the test."""
    started = project.run(project.prompt(step(SERVE), text="Started."), "-y")
    assert (started.code, started.out) == (0, "Started.\n"), started
    jobs = done(project.client.get(f"{project.workspace}/jobs"))["jobs"]
    assert [each["state"] for each in jobs] == ["running"]
    yield jobs[0]["session_id"]
    (project.directory / ".git/over").touch()


def test_what_a_person_does_between_two_runs_stays_while_a_job_lives(project: Project, job: str) -> None:
    readme, price = project.directory / "README.md", project.directory / "shop/price.py"
    readme.write_text("# Shop\nMY HAND EDIT\n")
    assert project.run(project.prompt(step(bash("echo b >> shop/price.py")), text="B"), "-y").code == 0
    assert [line.split()[-1] for line in session(project, "files").out.splitlines()] == ["FILE", "shop/price.py"]
    undone = session(project, "undo")
    assert undone.code == 0, undone
    assert undone.out.splitlines()[0] == "modified  shop/price.py  +0 -1", undone
    assert readme.read_text() == "# Shop\nMY HAND EDIT\n"
    assert not price.read_text().endswith("b\n")
    session(project, "redo")
    assert (readme.read_text(), price.read_text()[-2:]) == ("# Shop\nMY HAND EDIT\n", "b\n")


def test_the_undo_of_a_session_with_a_job_names_what_may_be_the_users(project: Project, job: str) -> None:
    readme = project.directory / "README.md"
    readme.write_text("by hand, or by the job\n")
    route = f"{project.workspace}/sessions/{job}"
    answer = done(project.client.post(f"{route}/undo", {"dry_run": True}))
    assert answer["files"] == [{"path": "README.md", "status": "modified", "obstacle": "background_job"}]
    undone = session(project, "undo", job)
    assert undone.code == 0, undone
    assert undone.out.splitlines()[0].startswith("left      README.md  (changed while a background job ran"), undone
    assert "--include-unsure" in undone.err
    assert readme.read_text() == "by hand, or by the job\n"
    done(project.client.post(f"{route}/redo", {}))
    asked_for = session(project, "undo", job, "--include-unsure")
    assert asked_for.out.splitlines()[0] == "modified  README.md  +1 -1", asked_for
    assert readme.read_text() == "# Shop\n"
    session(project, "redo", job)
    assert readme.read_text() == "by hand, or by the job\n"


def test_the_same_edits_after_a_checkout_are_undone_while_a_job_lives(project: Project, job: str) -> None:
    names = ("a.txt", "b.txt", "c.txt")
    for name in names:
        (project.directory / name).write_text("one\n")
    subprocess.run(["git", "add", *names], cwd=project.directory, check=True)
    work = step(bash("for f in a b c; do echo two >> $f.txt; done"))
    assert project.run(project.prompt(work, text="A"), "-y").code == 0
    subprocess.run(["git", "checkout", "-q", "--", *names], cwd=project.directory, check=True)
    assert project.run(project.prompt(work, text="B"), "-y").code == 0
    found = done(project.client.get(f"{project.workspace}/sessions"))["sessions"][0]
    undone = done(project.client.post(f"{project.workspace}/sessions/{found['id']}/undo", {}))
    assert undone["files"] == [{"path": name, "status": "modified", "added": 0, "removed": 1} for name in names]
    assert [(project.directory / name).read_text() for name in names] == ["one\n"] * 3


def test_the_timeline_names_commands_with_their_files_and_half_an_undo_is_redone(project: Project) -> None:
    before = tree_of(project.directory)
    project.run(project.prompt(*WORK, text="Mended."), "-y")
    after = tree_of(project.directory)
    found = json.loads(session(project, "timeline", "--json").out)
    calls = {call["tool"]: call for call in found["turns"][0]["calls"]}
    assert calls["bash"]["command"].startswith("rm README.md")
    assert [file["path"] for file in calls["bash"]["files"]] == ["README.md", "tools/run"]
    assert [file["path"] for file in calls["edit"]["files"]] == ["shop/price.py"]
    assert found["turns"][0]["back"] == {"files": 4, "added": 2, "removed": 3, "unsure": 0}
    prompt = found["turns"][0]["message_id"]
    both = session(project, "undo", "--files-only", "--conversation-only")
    assert both.code == 2, both
    assert session(project, "undo", "--message", prompt, "--files-only").code == 0
    assert tree_of(project.directory) == before
    assert "Mended." in session(project, "show", *shown_session(project)).out
    assert session(project, "redo").code == 0
    assert tree_of(project.directory) == after
    assert session(project, "undo", "--message", prompt, "--conversation-only").code == 0
    assert tree_of(project.directory) == after
    assert "Mended." not in session(project, "show", *shown_session(project)).out
    listed = session(project, "timeline")
    assert "rm README.md" in listed.out, listed
    assert "shop/price.py  +1 -1" in listed.out, listed
    assert "redone: files" in listed.out, listed
    assert "undone: conversation" in listed.out, listed


def shown_session(project: Project) -> list[str]:
    return [done(project.client.get(f"{project.workspace}/sessions"))["sessions"][0]["id"]]
