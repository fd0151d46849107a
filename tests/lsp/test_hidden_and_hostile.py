"""What a server must not be told, and what it must not make the model or a person see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.lsp.documents import CREATED, DELETED
from kedge.lsp.edits import plan_edits
from kedge.lsp.features import _format_places
from kedge.lsp.messages import Diagnostic, DocumentChange, DocumentId, Position, Range, TextEdit, WorkspaceEdit
from kedge.lsp.positions import path_to_uri
from kedge.lsp.reports import describe
from kedge.tools.errors import ToolError
from tests.lsp.conftest import Project

SPAN = Range(Position(0, 0), Position(0, 3))


def change(*paths: Path) -> WorkspaceEdit:
    return WorkspaceEdit(changes={path_to_uri(path): [TextEdit(SPAN, "new")] for path in paths})


def test_text_of_a_server_is_one_bounded_line_without_control_characters() -> None:
    message = "\x1b]52;c;cm0gLXJm\x07 bad\nsecond \u202eline" + "x" * 10_000
    text = describe(Diagnostic(SPAN, message, severity=1, code="\x1b[31m" + "c" * 500))
    assert text.isprintable()
    assert len(text) < 600


async def test_a_rename_that_includes_a_hidden_file_changes_nothing(project: Project) -> None:
    shown, hidden = project.write("a.txt", "old\n"), project.write("secret.txt", "old\n")
    project.harness.is_hidden = lambda path: path == str(hidden)
    with pytest.raises(ToolError, match=r"secret\.txt"):
        await asyncio.to_thread(plan_edits, change(shown, hidden), "utf-8", project.harness)
    assert (shown.read_text(), hidden.read_text()) == ("old\n", "old\n")


async def test_a_server_that_also_wants_to_rename_a_file_changes_nothing(project: Project) -> None:
    path = project.write("a.txt", "old\n")
    edit = WorkspaceEdit(
        document_changes=[
            DocumentChange(DocumentId(path_to_uri(path)), [TextEdit(SPAN, "new")]),
            DocumentChange(kind="rename"),
        ]
    )
    with pytest.raises(ToolError, match="rename"):
        await asyncio.to_thread(plan_edits, edit, "utf-8", project.harness)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"old \r\nnext\r\n", b"new \r\nnext\r\n"),
        ("old 😀\n".encode("utf-16"), "new 😀\n".encode("utf-16")),
        (b"\xef\xbb\xbfold\n", b"\xef\xbb\xbfnew\n"),
    ],
)
async def test_a_change_keeps_encoding_mark_and_line_ends(project: Project, before: bytes, after: bytes) -> None:
    (planned,) = await asyncio.to_thread(plan_edits, change(project.write("a.txt", before)), "utf-16", project.harness)
    assert planned.data == after


async def test_lines_of_files_outside_of_the_workspace_are_not_shown(project: Project, tmp_path: Path) -> None:
    await project.script()
    inside = project.write("a.txt", "inside\n")
    outside = project.directory.parent / "outside.txt"
    outside.write_text("planted\n")
    link = project.directory / "link.txt"
    link.symlink_to(outside)
    await project.start(inside)
    (server,) = project.servers.running()
    places = [(path, SPAN) for path in (inside, outside, link)]
    lines = await asyncio.to_thread(_format_places, places, server, project.harness)
    assert lines[0] == "a.txt:1:1: inside"
    assert "planted" not in "".join(lines)
    assert len(lines) == 3


async def test_a_file_that_is_too_large_is_not_opened(project: Project) -> None:
    await project.script()
    path = project.write("a.txt", "bad\n" + "x" * (2 * 1024 * 1024))
    await project.start(path)
    assert await project.check(path) == []
    with pytest.raises(ToolError, match="too large"):
        await project.harness.call("lsp_diagnostics", path="a.txt")


@pytest.mark.slow
async def test_files_that_appear_and_vanish_are_announced(project: Project) -> None:
    await project.use("basedpyright")
    user = project.write("use.py", "import helper\n")
    await project.start(user)
    assert [each.line for each in await project.check(user)] == [1], "there is no such module"
    helper = project.write("helper.py", "x = 1\n")
    assert await project.reporter.check({helper: CREATED}) == []
    assert await project.check(user) == []
    helper.unlink()
    project.reporter.note_changes({helper: DELETED})
    await project.reporter.wait()
    project.write("use.py", "import helper  # again\n")
    assert [each.line for each in await project.check(user)] == [1]


async def test_a_quick_fix_of_ruff_is_applied(project: Project) -> None:
    await project.use("ruff")
    path = project.write("a.py", "import os\n\nx = 1\n")
    await project.start(path)
    listed = await project.harness.call("lsp_code_action", path="a.py", first_line=1)
    title = next(line for line in listed.content.splitlines() if "unused import" in line)
    project.harness.approved_paths = frozenset({path})
    await project.harness.call("lsp_code_action", path="a.py", first_line=1, title=title)
    assert path.read_text() == "\nx = 1\n"
