"""Real language servers: fresh diagnostics after every change, and navigation in files that are awkward to count in."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.tools.errors import ToolError
from tests.lsp.conftest import Project

PYTHON = ("a.py", "def f(x: int) -> str:\n    return x\n", "def f(x: int) -> str:\n    return str(x)\n")
C = ("a.c", "int main(void) { return y; }\n", "int main(void) { return 0; }\n")
SHELL = ("a.sh", "#!/bin/bash\nif [ $x; then\necho\n", "#!/bin/bash\necho hi\n")
TYPESCRIPT = ("a.ts", "const x: number = 'a';\n", "const x: number = 1;\n")
UNDEFINED = ("a.py", "print(y)\n", "print(1)\n")

CASES = {
    "basedpyright": PYTHON,
    "pyright": PYTHON,
    "ruff": UNDEFINED,
    "clangd": C,
    "bash-language-server": SHELL,
    "typescript": TYPESCRIPT,
}


@pytest.mark.slow
@pytest.mark.parametrize("server", CASES)
async def test_each_change_has_the_diagnostics_of_its_own_text(project: Project, server: str) -> None:
    name, bad, good = CASES[server]
    await project.use(server)
    path = project.write(name, good)
    await project.start(path)
    await project.learn(path)
    for _ in range(3):
        project.write(name, bad)
        found = await project.check(path)
        assert found, "the error is there"
        assert {finding.path for finding in found} == {path}
        assert all(finding.text.startswith("error: ") for finding in found)
        project.write(name, good)
        assert await project.check(path) == []


@pytest.mark.slow
async def test_typescript_5_has_fresh_diagnostics_without_versions(project: Project, old_typescript: Path) -> None:
    name, bad, good = TYPESCRIPT
    (project.directory / "node_modules").symlink_to(old_typescript)
    await project.use("typescript", "typescript-language-server")
    path = project.write(name, good)
    await project.start(path)
    assert [state.name for state in project.servers.list_states()] == ["typescript-language-server"]
    await project.learn(path)
    project.write(name, bad)
    assert await project.check(path)
    project.write(name, good)
    assert await project.check(path) == []


@pytest.mark.slow
@pytest.mark.parametrize("server", ["basedpyright", "typescript"])
async def test_an_edit_that_breaks_an_open_file_is_reported_there(project: Project, server: str) -> None:
    if server == "basedpyright":
        lib, old, new, use = "lib.py", "def f(x: int) -> int:\n    return x\n", "X = 1\n", "from lib import f\nf(1)\n"
        user = project.write("main.py", use)
    else:
        lib, old, new = "lib.ts", "export function f(x: number) { return x }\n", "export const g = 1\n"
        user = project.write("main.ts", "import { f } from './lib'\nf(1)\n")
    await project.use(server)
    changed = project.write(lib, old)
    await project.start(changed)
    for path in (user, changed):
        await project.learn(path)
    project.write(lib, new)
    found = await project.check(changed)
    while not found:  # a server that publishes may need longer for the other file than for the changed one
        found = await project.check(changed)
    assert {finding.path for finding in found} == {user}


PY_LIB = 'GREETING = "𝄞 é"; name = 1  # 𝄞\r\nclass Thing:\r\n    """A 𝄞 thing."""\r\n\r\n    size = name\r\n'
PY_USE = 'from lib import name\r\nx = ["𝄞", name]\r\nprint(name)\r\n'


@pytest.mark.slow
@pytest.mark.parametrize("server", ["basedpyright", "pyright"])
async def test_navigation_and_rename_in_files_with_wide_characters_and_windows_lines(
    project: Project, server: str
) -> None:
    await project.use(server)
    lib, use = project.write("lib.py", b"\xef\xbb\xbf" + PY_LIB.encode()), project.write("use.py", PY_USE)
    await project.start(lib)
    harness = project.harness

    definition = await harness.call("lsp_definition", path="use.py", line=2, symbol="name")
    assert definition.content.startswith("lib.py:1:19: GREETING")
    references = await harness.call("lsp_references", path="lib.py", line=1, symbol="name")
    assert [line.partition(": ")[0] for line in references.content.splitlines()] == [
        "lib.py:1:19",
        "lib.py:5:12",
        "use.py:1:17",
        "use.py:2:11",
        "use.py:3:7",
    ]
    hover = await harness.call("lsp_hover", path="use.py", line=3, symbol="name")
    assert "name" in hover.content
    symbols = await harness.call("lsp_symbols", path="lib.py")
    assert "class Thing" in symbols.content

    wanted = {"path": "use.py", "line": 3, "symbol": "name", "new_name": "title"}
    accesses = await harness.list_access("lsp_rename", **wanted)
    assert {access.subject for access in accesses} == {str(lib), str(use)}
    assert all(access.kind == "write" and "title" in access.params["diff"] for access in accesses)
    harness.approved_paths = frozenset({lib, use})
    await harness.call("lsp_rename", **wanted)
    assert use.read_bytes() == PY_USE.replace("name", "title").encode()
    assert lib.read_bytes() == b"\xef\xbb\xbf" + PY_LIB.replace("name", "title").encode()
    assert {path for path, _, _ in harness.changed} == {lib, use}


async def test_a_symbol_is_found_by_its_name_in_the_whole_project(project: Project) -> None:
    await project.use("typescript")
    project.write("tsconfig.json", "{}")
    project.write("lib/thing.ts", "\nexport class Thing {}\n")
    path = project.write("main.ts", "import { Thing } from './lib/thing'\nnew Thing()\n")
    await project.start(path)
    await project.learn(path)
    found = await project.harness.call("lsp_symbols", query="Thin")
    assert "lib/thing.ts:2: class Thing" in found.content.splitlines()


@pytest.mark.slow
async def test_a_rename_touches_no_file_that_was_not_approved(project: Project) -> None:
    await project.use("basedpyright")
    lib, use = project.write("lib.py", PY_LIB), project.write("use.py", PY_USE)
    await project.start(lib)
    project.harness.approved_paths = frozenset({lib})
    with pytest.raises(ToolError):
        await project.harness.call("lsp_rename", path="use.py", line=3, symbol="name", new_name="title")
    assert (lib.read_text(), use.read_text()) == (PY_LIB.replace("\r\n", "\n"), PY_USE.replace("\r\n", "\n"))


async def test_imports_are_organized_by_a_code_action(project: Project) -> None:
    await project.use("ruff")
    path = project.write("a.py", "import sys\nimport os\n\nprint(os, sys)\n")
    await project.start(path)
    listed = await project.harness.call("lsp_code_action", path="a.py", first_line=1, last_line=2)
    title = next(line for line in listed.content.splitlines() if "rganize imports" in line)
    project.harness.approved_paths = frozenset({path})
    await project.harness.call("lsp_code_action", path="a.py", first_line=1, last_line=2, title=title)
    assert path.read_text() == "import os\nimport sys\n\nprint(os, sys)\n"


async def test_diagnostics_of_a_file_name_the_place_the_code_and_the_server(project: Project) -> None:
    await project.use("ruff")
    project.write("src/a.py", "x = 1\nprint(y)\n")
    result = await project.harness.call("lsp_diagnostics", path="src/a.py")
    assert result.content == "src/a.py:2:7: error: Undefined name `y` [F821] (ruff)"
    project.write("src/a.py", "x = 1\n")
    assert (await project.harness.call("lsp_diagnostics")).content == "No problems."


async def test_a_place_that_is_not_there_is_explained(project: Project) -> None:
    await project.use("basedpyright")
    path = project.write("a.py", "value = 1\n")
    await project.start(path)
    with pytest.raises(ToolError, match="value = 1"):
        await project.harness.call("lsp_definition", path="a.py", line=1, symbol="missing")
    with pytest.raises(ToolError):
        await project.harness.call("lsp_definition", path="a.py", line=99, symbol="value")
    with pytest.raises(ToolError):
        await project.harness.call("lsp_rename", path="a.py", line=1, symbol="value", new_name="not a name")
    assert path.read_text() == "value = 1\n"
