"""`edit`, `multiedit` and `write` on real files: what is not seen is not changed, and a file stays what it was."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from kedge.tools.builtin.edit import TOOL as EDIT
from kedge.tools.builtin.multiedit import TOOL as MULTIEDIT
from kedge.tools.builtin.multiedit import OneEdit
from kedge.tools.builtin.write import TOOL as WRITE
from kedge.tools.builtin.write import plan_edit
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool
from kedge.tools.text.edit_plan import apply_plan
from kedge.tools.text.text_file import compute_digest
from tests.tools.harness import ToolHarness


async def call(tool: Tool, harness: ToolHarness, **params: Any) -> Output:
    """As the agent does it: what it wants is told first, then it runs, and what it learnt is remembered."""
    given = tool.params(**params)
    assert tool.list_access is not None
    accesses = await tool.list_access(harness, given)
    assert [access.kind for access in accesses] == ["write"]
    output = await tool.run(harness, given)
    metadata = output.metadata or {}
    harness.known_files.update(metadata.get("files", {}))
    harness.unviewed_files = (harness.unviewed_files - set(metadata.get("files", {}))) | set(
        metadata.get("unviewed", ())
    )
    return output


def seen(harness: ToolHarness, name: str, data: bytes) -> Path:
    path = harness.directory / name
    path.write_bytes(data)
    harness.known_files[str(path)] = compute_digest(data)
    return path


async def test_an_edit_changes_the_place_and_shows_the_change(harness: ToolHarness) -> None:
    path = seen(harness, "a.py", b"x = 1\ny = 2\n")
    output = await call(EDIT, harness, path="a.py", old_string="x = 1", new_string="x = 3")
    assert path.read_bytes() == b"x = 3\ny = 2\n"
    assert "-x = 1\n+x = 3" in output.content
    again = await call(EDIT, harness, path="a.py", old_string="y = 2", new_string="y = 4")
    assert again.metadata is not None
    assert (again.metadata["added"], again.metadata["removed"]) == (1, 1)


async def test_text_that_is_there_exactly_once_is_replaced_without_a_view(harness: ToolHarness) -> None:
    path = harness.directory / "a.py"
    path.write_text("x = 1\ny = 2\n")
    await call(EDIT, harness, path="a.py", old_string="x = 1", new_string="x = 3")
    await call(MULTIEDIT, harness, path="a.py", edits=[_edit("y = 2", "y = 4"), _edit("y = 4\n", "y = 5\n")])
    assert path.read_text() == "x = 3\ny = 5\n"
    with pytest.raises(ToolError, match="has not been read in this conversation"):
        await call(WRITE, harness, path="a.py", content="")
    path.write_text("x = 3\ny = 6\n")
    with pytest.raises(ToolError, match="changed since you last saw it"):
        await call(EDIT, harness, path="a.py", old_string="x = 3", new_string="x = 4")
    assert path.read_text() == "x = 3\ny = 6\n"


NOT_READ = "has not been read in this conversation. View it first"


@pytest.mark.parametrize(
    ("tool", "params", "why"),
    [
        (EDIT, {"old_string": "x", "new_string": "y", "replace_all": True}, NOT_READ),
        (MULTIEDIT, {"edits": [OneEdit(old_string="x", new_string="y", replace_all=True)]}, NOT_READ),
        (WRITE, {"content": "y"}, NOT_READ),
        (EDIT, {"old_string": "if x:\n    y\n", "new_string": "pass\n"}, r"(?s)is not in a.py.*     2\t    if x:"),
        (EDIT, {"old_string": "x", "new_string": "y"}, r"3 times \(lines 1, 2, 4\)"),
    ],
)
async def test_a_file_that_was_not_read_is_changed_in_no_other_way(
    harness: ToolHarness, tool: Tool, params: dict[str, object], why: str
) -> None:
    text = "x = 1\n    if x:\n        y\nx\n"
    (harness.directory / "a.py").write_text(text)
    with pytest.raises(ToolError, match=why):
        await call(tool, harness, path="a.py", **params)
    assert (harness.directory / "a.py").read_text() == text


async def test_an_edit_tells_nothing_of_a_file_that_the_model_may_not_read(harness: ToolHarness) -> None:
    """The error of an edit comes before any permission is asked."""
    outside, hidden = harness.directory.parent / "outside.txt", harness.directory / "hidden.txt"
    for path in (outside, hidden):
        path.write_text("password = 1234\n")
    harness.is_hidden = lambda path: path == str(hidden)
    for path in (outside, hidden):
        for guess in ("password = 1234", "password = 9"):
            with pytest.raises(ToolError, match=NOT_READ) as caught:
                await call(EDIT, harness, path=str(path), old_string=guess, new_string="x")
            assert "1234" not in caught.value.text


async def test_a_long_change_is_told_by_its_line_numbers_and_shown_to_people(harness: ToolHarness) -> None:
    old = "".join(f"line {i}\n" for i in range(1, 301))
    path = seen(harness, "long.txt", old.encode())
    new = old.replace("line 5\n", "").replace("line 100\n", "line 100\n" + "new\n" * 60).replace("line 299\n", "x\n")
    output = await call(WRITE, harness, path="long.txt", content=new)
    assert path.read_text() == new
    ranges = re.findall(r"(\d+)(?:-(\d+))?", output.content.partition("now")[2])
    lines = new.splitlines()
    assert [[lines[int(n) - 1] for n in found if n] for found in ranges] == [["line 6"], ["new", "new"], ["x"]]
    assert "+new" not in output.content
    assert "+new" in (output.metadata or {})["diff"]


async def test_a_new_file_is_told_in_one_line(harness: ToolHarness) -> None:
    output = await call(WRITE, harness, path="big.py", content="x = 1\n" * 749)
    assert output.content == "Created big.py, 749 lines."
    assert (output.metadata or {})["added"] == 749
    assert (output.metadata or {})["diff"].count("+x = 1") > 700


async def test_a_file_that_changed_since_is_refused(harness: ToolHarness) -> None:
    path = seen(harness, "a.py", b"x = 1\n")
    path.write_text("x = 1  # mine\n")
    with pytest.raises(ToolError, match="changed since you last saw it"):
        await call(EDIT, harness, path="a.py", old_string="x = 1", new_string="x = 2")
    with pytest.raises(ToolError, match="changed since you last saw it"):
        await call(WRITE, harness, path="a.py", content="x = 2\n")
    assert path.read_text() == "x = 1  # mine\n"


async def test_mode_link_line_ends_encoding_and_the_missing_last_line_end_stay(harness: ToolHarness) -> None:
    path = seen(harness, "real.sh", "\ufeffdé 1\r\nzwei\r\ndrei".encode())
    path.chmod(0o751)
    (harness.directory / "link.sh").symlink_to("real.sh")
    before = path.stat()
    await call(EDIT, harness, path="link.sh", old_string="zwei", new_string="2\n2½")
    assert path.read_bytes() == "\ufeffdé 1\r\n2\r\n2½\r\ndrei".encode()
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == 0o751
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert (harness.directory / "link.sh").is_symlink()
    assert sorted(each.name for each in harness.directory.iterdir()) == ["link.sh", "real.sh"]


async def test_several_edits_are_all_or_none(harness: ToolHarness) -> None:
    path = seen(harness, "a", b"one\ntwo\n")
    with pytest.raises(ToolError, match=r"(?s)Edit 2 of 2: .*Nothing was written"):
        await call(MULTIEDIT, harness, path="a", edits=[_edit("one", "1"), _edit("three", "3")])
    assert path.read_bytes() == b"one\ntwo\n"
    await call(MULTIEDIT, harness, path="a", edits=[_edit("one", "1\n3"), _edit("3\ntwo", "2")])
    assert path.read_bytes() == b"1\n2\n"


async def test_a_new_file_gets_its_directories_and_the_users_mask(harness: ToolHarness) -> None:
    output = await call(WRITE, harness, path="deep/er/new.txt", content="hello\n")
    path = harness.directory / "deep/er/new.txt"
    assert path.read_text() == "hello\n"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert output.content == "Created deep/er/new.txt, 1 line."
    await call(EDIT, harness, path="deep/er/new.txt", old_string="hello", new_string="bye")


async def test_a_file_made_by_somebody_else_meanwhile_is_not_overwritten(harness: ToolHarness) -> None:
    params = WRITE.params(path="new", content="mine")
    planned = await _planned(harness, params)
    (harness.directory / "new").write_text("theirs")
    with pytest.raises(ToolError, match="created by somebody else"):
        await planned
    assert (harness.directory / "new").read_text() == "theirs"


async def test_a_crlf_file_that_is_written_whole_keeps_its_line_ends(harness: ToolHarness) -> None:
    path = seen(harness, "a.bat", b"one\r\ntwo\r\n")
    await call(WRITE, harness, path="a.bat", content="1\n2\n")
    assert path.read_bytes() == b"1\r\n2\r\n"


async def test_a_read_only_directory_is_an_error_and_leaves_nothing(harness: ToolHarness) -> None:
    blocked = harness.directory / "file"
    blocked.write_text("")
    for path in ("file/below", "file/far/below"):
        with pytest.raises(ToolError, match=r"^file is not a directory"):
            await call(WRITE, harness, path=path, content="x")
    assert [each.name for each in harness.directory.iterdir()] == ["file"]


async def test_a_binary_file_is_refused(harness: ToolHarness) -> None:
    seen(harness, "a.bin", b"\0\1\2")
    with pytest.raises(ToolError, match="binary"):
        await call(EDIT, harness, path="a.bin", old_string="a", new_string="b")


def _edit(old: str, new: str) -> OneEdit:
    return OneEdit(old_string=old, new_string=new)


async def _planned(harness: ToolHarness, params: Any) -> Any:
    return apply_plan(harness, plan_edit(harness, params))


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
async def test_a_file_is_created_where_there_are_no_hard_links(
    harness: ToolHarness, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    await call(WRITE, harness, path="new.txt", content="x\n")
    assert [(each.name, each.read_text()) for each in harness.directory.iterdir()] == [("new.txt", "x\n")]
