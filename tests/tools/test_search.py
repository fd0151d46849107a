"""`glob`, `grep` and `ls` on real trees with the real ripgrep; what is ignored is what git says."""

from __future__ import annotations

import asyncio
import codecs
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.config.schema import PermissionsConfig
from kedge.protocol.runs import RunOptions
from kedge.tools.builtin.glob import TOOL as GLOB
from kedge.tools.builtin.grep import TOOL as GREP
from kedge.tools.builtin.ls import TOOL as LS
from kedge.tools.errors import ToolError
from kedge.tools.permissions.judge import Judge
from kedge.tools.port import Tool
from kedge.tools.search.file_search import find_start, list_files
from tests.tools.harness import ToolHarness


@pytest.fixture
def place(harness: ToolHarness, tmp_path: Path) -> ToolHarness:
    (tmp_path / "home").mkdir()
    harness.env = {**harness.env, "XDG_CONFIG_HOME": str(tmp_path / "home/.config")}
    return harness


def tree(place: ToolHarness, **contents: str) -> None:
    for i, (name, content) in enumerate(contents.items()):
        path = place.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (1_000_000 + i, 1_000_000 + i))  # the later, the newer


async def call(tool: Tool, place: ToolHarness, **params: Any) -> str:
    return (await tool.run(place, tool.params(**params))).content


async def list_access(tool: Tool, place: ToolHarness, **params: Any) -> list[str]:
    assert tool.list_access is not None
    return [access.subject for access in await tool.list_access(place, tool.params(**params))]


async def test_glob_finds_at_any_depth_the_newest_first(place: ToolHarness) -> None:
    tree(place, **{"a.py": "", "src/b.py": "", "src/c.ts": "", "src/deep/d.py": ""})
    assert await call(GLOB, place, pattern="*.py") == "src/deep/d.py\nsrc/b.py\na.py"
    assert await call(GLOB, place, pattern="src/*.{py,ts}") == "src/c.ts\nsrc/b.py"
    assert await call(GLOB, place, pattern="deep/*.py", path="src") == "src/deep/d.py"
    tree(place, **{"ünï.js": "", "x.js": ""})
    assert await call(GLOB, place, pattern="???.js") == "ünï.js"
    assert await call(GLOB, place, pattern="[!a]*[i-ï].{js,go}") == "ünï.js"
    assert await call(GLOB, place, pattern="*.go") == "No file matches *.go."


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("{root}/src/*.py", "src/b.py"),
        ("{root}/src/**", "src/deep/d.py\nsrc/b.py"),
        ("{root}/*.py", "a.py"),
        ("{link}/src/*.py", "src/b.py"),
        ("{link}/*.py", "a.py"),
        ("./*.py", "a.py"),
        ("./src/./*.py", "src/b.py"),
    ],
)
async def test_patterns_may_be_absolute_or_begin_with_a_dot(
    place: ToolHarness, tmp_path: Path, pattern: str, found: str
) -> None:
    tree(place, **{"a.py": "x", "src/b.py": "x", "src/deep/d.py": "x"})
    (tmp_path / "link").symlink_to(place.directory)
    pattern = pattern.format(root=place.directory, link=tmp_path / "link")
    assert await call(GLOB, place, pattern=pattern) == found
    searched = await call(GREP, place, pattern="x", include=pattern, files_only=True)
    assert searched.split("\n\n")[1] == found


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("../*.py", "Give the directory as `path`"),
        ("src/../*.py", "Give the directory as `path`"),
        ("/etc/*.conf", "is not below src. Give the directory as `path`"),
        ("/e\0tc/*", "NUL"),
        ("a[bc.py", r"\[ that is not closed"),
        ("*.{py,[x}", r"\[ that is not closed"),
    ],
)
async def test_a_pattern_that_can_find_nothing_says_what_to_write(place: ToolHarness, pattern: str, why: str) -> None:
    tree(place, **{"src/a.py": "x"})
    with pytest.raises(ToolError, match=why):
        await call(GLOB, place, pattern=pattern, path="src")
    with pytest.raises(ToolError, match=why):
        await call(GREP, place, pattern="x", include=pattern, path="src")


async def test_a_hundred_are_shown_and_the_rest_is_told(place: ToolHarness) -> None:
    tree(place, **{f"f{i}.txt": "needle" for i in range(150)})
    found = await call(GLOB, place, pattern="*.txt")
    assert found.startswith("f149.txt\nf148.txt\n")
    assert "150 files match; these are the newest 100" in found
    found = await call(GREP, place, pattern="needle")
    assert found.startswith("150 matching lines in 150 files.")
    assert found.count(": needle") == 100
    assert "only the first 100" in found


async def test_grep_shows_lines_with_numbers_and_context(place: ToolHarness) -> None:
    tree(place, **{"a.py": "one\ntwo\nthree\n", "b.txt": "two\n"})
    found = await call(GREP, place, pattern="tw.", include="*.py", context=1)
    assert found == "1 matching line in 1 file.\n\na.py\n  1- one\n  2: two\n  3- three\n"
    assert await call(GREP, place, pattern="tw.", literal=True) == "No matches."
    assert await call(GREP, place, pattern="TWO", ignore_case=True, files_only=True) == (
        "2 matching lines in 2 files.\n\nb.txt\na.py"
    )


async def test_a_bad_expression_says_what_is_wrong(place: ToolHarness) -> None:
    with pytest.raises(ToolError, match=r"(?s)unclosed group.*Set `literal`"):
        await call(GREP, place, pattern="f(")
    with pytest.raises(ToolError) as caught:
        await call(GREP, place, pattern="(?=a)")
    assert "look-ahead" in str(caught.value)
    assert "--pcre2" not in str(caught.value)  # which the model cannot set


@pytest.mark.parametrize(("pattern", "literal"), [(r"a\nb", False), ("a\nb", False), ("a\nb", True)])
async def test_a_pattern_of_several_lines_says_that_lines_are_searched(
    place: ToolHarness, pattern: str, literal: bool
) -> None:
    tree(place, x="a\nb\n")
    with pytest.raises(ToolError, match=r"line by line.*`context`.*bash"):
        await call(GREP, place, pattern=pattern, literal=literal)


async def test_a_backslash_and_an_n_may_be_searched_as_text(place: ToolHarness) -> None:
    tree(place, **{"x.c": 'puts("a\\nb");\n'})
    assert "1 matching line in 1 file." in await call(GREP, place, pattern=r"a\nb", literal=True)
    assert "1 matching line in 1 file." in await call(GREP, place, pattern=r"a\\nb")


async def test_odd_lines_and_names_are_shown_as_text(place: ToolHarness) -> None:
    (place.directory / os.fsdecode(b"\xff.txt")).write_bytes(b"needle \xff\r\n")
    (place.directory / "new\nline.txt").write_bytes(b"needle\n")
    (place.directory / "long.txt").write_bytes(b"needle" + b"x" * 100_000 + b"\n")
    (place.directory / "binary").write_bytes(b"needle\0\n")
    found = await call(GREP, place, pattern="needle")
    assert "\ufffd.txt\n  1: needle \ufffd" in found
    assert "(cut)" in found
    assert len(found) < 2_000
    assert "\ufffd.txt" in await call(GLOB, place, pattern="*.txt")


async def test_secrets_are_searched_only_by_name(place: ToolHarness) -> None:
    secrets = dict.fromkeys((".env", ".env.production", "deploy.pem", "id_rsa", ".netrc"), "needle")
    tree(place, **secrets, **{".env.example": "needle"})
    assert ".env.example" in (found := await call(GREP, place, pattern="needle"))
    assert found.startswith("1 matching line in 1 file")
    for name in secrets:
        assert (await call(GREP, place, pattern="needle", path=name)).startswith("1 matching")
    assert (await call(GREP, place, pattern="needle", include=".env")).startswith("1 matching")


async def test_where_it_searches_is_told(place: ToolHarness) -> None:
    outside = place.directory.parent / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("needle")
    (place.directory / "link").symlink_to(outside)
    for tool, params in [(GLOB, {"pattern": "*"}), (GREP, {"pattern": "needle"}), (LS, {})]:
        assert await list_access(tool, place, **params) == [str(place.directory)]
        assert await list_access(tool, place, path="../outside", **params) == [str(outside)]
        assert await list_access(tool, place, path="link", **params) == [str(outside)]
    assert f"{outside}/a.py" in await call(GREP, place, pattern="needle", path="link")


async def test_ls_shows_a_tree_with_counts(place: ToolHarness) -> None:
    tree(place, **{"a.py": "", "src/b.py": "", "src/deep/c.py": "", "src/deep/d.py": ""})
    assert await call(LS, place) == ".: 4 files\n  src/\n    deep/ (2 files)\n    b.py\n  a.py"
    assert "c.py" in await call(LS, place, depth=3)
    assert (await call(LS, place, path="src/deep")).endswith(": 2 files\n  c.py\n  d.py")
    with pytest.raises(ToolError, match="use view"):
        await call(LS, place, path="a.py")


async def test_a_missing_directory_says_what_to_do(place: ToolHarness) -> None:
    for tool, params in [(GLOB, {"pattern": "*"}), (GREP, {"pattern": "x"}), (LS, {})]:
        with pytest.raises(ToolError, match=r"nowhere does not exist. List \. to see"):
            await call(tool, place, path="nowhere", **params)
        tree(place, **{"src/a.py": ""})
        with pytest.raises(ToolError, match=r"src/no/where does not exist. List src to see"):
            await call(tool, place, path="src/no/where", **params)


async def test_ls_tells_ignored_files_from_none(place: ToolHarness) -> None:
    tree(place, **{".gitignore": "*.log\n*.o\n", "logs/a.log": "", "build/deep/x.o": ""})
    (place.directory / "empty/deep").mkdir(parents=True)
    for name in ("logs", "build"):
        assert (await call(LS, place, path=name)).startswith(f"{name}: 0 files (what is in it is ignored")
    assert await call(LS, place, path="empty") == "empty: 0 files"
    place.is_hidden = lambda path: path.endswith("a.log")
    assert await call(LS, place, path="logs") == "logs: 0 files"


async def test_kedgeignore_and_the_users_own_excludes_are_heeded(place: ToolHarness) -> None:
    tree(place, **{"kept.py": "", "vendor/x.py": "", "a.swp": "", ".kedgeignore": "/vendor/\n"})
    config = Path(place.env["XDG_CONFIG_HOME"]) / "git"
    config.mkdir(parents=True)
    (config / "ignore").write_text("*.swp\n")
    assert await call(GLOB, place, pattern="*") == ".kedgeignore\nkept.py"
    assert await call(GLOB, place, pattern="*.py") == "kept.py"
    assert await call(GLOB, place, pattern="*.py", path="vendor") == "vendor/x.py", "asked for by name"


SEGMENTS = st.sampled_from(["a", "b", "build", "x.log", "deep", "é"])
PATTERNS = st.lists(
    st.sampled_from(
        ["a", "b/", "/a", "*.log", "!x.log", "build/", "**/deep", "a/**", "a/*/x.log", "!a/b/x.log", "/build", "#a",
         "\\#a", "é", "d??p", "[ab]", "!b", "deep/x.log", "*", "!*/", "!*.log"]
    ),
    max_size=5,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.lists(st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=12, unique=True),
    PATTERNS,
    PATTERNS,
    PATTERNS,
)
def test_what_is_ignored_is_what_git_says(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], top: list[str], inner: list[str], private: list[str]
) -> None:
    place = ToolHarness(tmp_path_factory.mktemp("repo"))
    place.env = {"PATH": os.environ["PATH"], "HOME": str(place.directory.parent)}
    root = place.directory
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    made: list[str] = []
    for name in names:
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
            made.append(name)
        except OSError:
            continue  # a file where a directory should be, or the other way round
    (root / ".gitignore").write_text("\n".join(top))
    (root / ".git/info/exclude").write_text("\n".join(private))
    if (root / "a").is_dir():
        (root / "a/.gitignore").write_text("\n".join(inner))
    ours = set(asyncio.run(_files(place)))
    logs = set(asyncio.run(_files(place, "*.log")))
    assert logs == {name for name in ours if name.endswith(".log")}
    asked = subprocess.run(
        ["git", "-C", str(root), "-c", "core.quotePath=false", "check-ignore", "-z", "--stdin"],
        input="\0".join(made).encode(), capture_output=True, check=False, env=place.env,
    )  # fmt: skip
    ignored = set(asked.stdout.decode().split("\0")) - {""}
    assert {name for name in made if name in ours} == set(made) - ignored


async def _files(place: ToolHarness, pattern: str | None = None) -> list[str]:
    return await list_files(place, await find_start(place, "."), pattern)


async def test_what_a_rule_forbids_to_read_is_not_found_either(place: ToolHarness) -> None:
    tree(place, **{"open.txt": "needle", "private/plans.txt": "needle"})
    denied = PermissionsConfig(deny=("view(private/**)",))
    place.is_hidden = Judge(denied, RunOptions(), "ask", directory=place.directory).is_hidden
    assert await call(GREP, place, pattern="needle", files_only=True) == "1 matching line in 1 file.\n\nopen.txt"
    assert await call(GLOB, place, pattern="*.txt") == "open.txt"
    assert "plans" not in await call(LS, place, depth=3)
    assert Judge(PermissionsConfig(), RunOptions(), "ask", directory=place.directory).is_hidden is None


async def test_grep_finds_lines_of_every_kind_of_text_file(harness: ToolHarness) -> None:
    """What ripgrep says is looked up in the file itself, which must be read as ripgrep reads it."""
    many = "".join(f"line {number}\n" for number in range(1_500_000))
    texts = {
        "utf16le.txt": codecs.BOM_UTF16_LE + "one\nneedle ä\r\n".encode("utf-16-le"),
        "utf16be.txt": codecs.BOM_UTF16_BE + "one\nneedle ä\n".encode("utf-16-be"),
        "utf8.txt": codecs.BOM_UTF8 + "needle ä\n".encode(),
        "latin.txt": "one\r\nneedle ä\r\n".encode("latin-1"),
        "long.txt": b"x" * 100_000 + b"\nneedle" + b"y" * 100_000 + b"\n",
        "wide.txt": ("needle" + "€" * 3_000).encode(),
        "large.txt": f"{many}needle\n".encode(),
        "no-end.txt": b"needle",
    }
    for name, data in texts.items():
        (harness.directory / name).write_bytes(data)
    found = (await harness.call("grep", pattern="needle")).content
    assert found.startswith(f"{len(texts)} matching lines in {len(texts)} files.")
    assert "  1500001: needle" in found
    assert found.count("needle ä") == 3
