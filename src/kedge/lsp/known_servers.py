"""The language servers that Kedge knows, and which of them fit a file. No IO except to look for programs.

Servers of one `role` do the same work for a language: the first that is installed is used. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kedge.config.schema import Config
from kedge.files.environment import find_program

NATIVE_TYPESCRIPT = 7  # the first version that is a language server

_GIT = (".git",)
_PYTHON = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "pyrightconfig.json", *_GIT)
_NODE = ("tsconfig.json", "jsconfig.json", "package.json", *_GIT)
_TS = {".ts": "typescript", ".mts": "typescript", ".cts": "typescript", ".tsx": "typescriptreact"}
_JS = {".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".jsx": "javascriptreact"}
_C = {
    **dict.fromkeys((".c", ".h"), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx"), "cpp"),
    ".m": "objective-c",
    ".mm": "objective-cpp",
    ".cu": "cuda",
}


class KnownServer(NamedTuple):
    """How to start a server. `languages` maps file extensions to the language ids of the protocol."""

    name: str
    argv: tuple[str, ...]
    languages: Mapping[str, str]
    root_markers: tuple[str, ...] = _GIT
    role: str = ""  # of servers that replace each other; empty: its name
    settings: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None  # `initializationOptions`
    # It executes code of the project to analyze it (build scripts, plugins): only in trusted directories.
    runs_project_code: bool = False
    env: Mapping[str, str] = {}
    is_configured: bool = False  # by the user, so it may be a program of the workspace


_PYRIGHT_SETTINGS = {
    "python": {"analysis": {"diagnosticMode": "openFilesOnly", "autoSearchPaths": True}},
    "basedpyright": {"analysis": {"diagnosticMode": "openFilesOnly"}},
}
_PY = {".py": "python", ".pyi": "python"}

KNOWN_SERVERS: tuple[KnownServer, ...] = (
    KnownServer("basedpyright", ("basedpyright-langserver", "--stdio"), _PY, _PYTHON, "python", _PYRIGHT_SETTINGS),
    KnownServer("pyright", ("pyright-langserver", "--stdio"), _PY, _PYTHON, "python", _PYRIGHT_SETTINGS),
    KnownServer("ty", ("ty", "server"), _PY, ("ty.toml", *_PYTHON), "python"),
    KnownServer("pyrefly", ("pyrefly", "lsp"), _PY, ("pyrefly.toml", *_PYTHON), "python", runs_project_code=True),
    KnownServer("zuban", ("zuban", "server"), _PY, _PYTHON, "python"),
    KnownServer("pylsp", ("pylsp",), _PY, _PYTHON, "python", runs_project_code=True),
    KnownServer("ruff", ("ruff", "server"), _PY, ("ruff.toml", ".ruff.toml", *_PYTHON)),
    KnownServer("typescript", ("tsc", "--lsp", "--stdio"), _TS | _JS, _NODE, "typescript"),
    KnownServer(
        "typescript-language-server",
        ("typescript-language-server", "--stdio"),
        _TS | _JS,
        _NODE,
        "typescript",
        options={"tsserver": {"useSyntaxServer": "never"}},
        runs_project_code=True,  # it loads TypeScript from node_modules
    ),
    KnownServer("gopls", ("gopls",), {".go": "go", ".mod": "go.mod"}, ("go.work", "go.mod", *_GIT)),
    KnownServer("rust-analyzer", ("rust-analyzer",), {".rs": "rust"}, ("Cargo.toml", *_GIT), runs_project_code=True),
    KnownServer("clangd", ("clangd",), _C, ("compile_commands.json", ".clangd", "compile_flags.txt", *_GIT)),
    KnownServer(
        "bash-language-server", ("bash-language-server", "start"), {".sh": "shellscript", ".bash": "shellscript"}
    ),
    KnownServer("json", ("vscode-json-language-server", "--stdio"), {".json": "json", ".jsonc": "jsonc"}),
    KnownServer("css", ("vscode-css-language-server", "--stdio"), {".css": "css", ".scss": "scss", ".less": "less"}),
    KnownServer("html", ("vscode-html-language-server", "--stdio"), {".html": "html", ".htm": "html"}),
    KnownServer("yaml", ("yaml-language-server", "--stdio"), {".yaml": "yaml", ".yml": "yaml"}),
    KnownServer("taplo", ("taplo", "lsp", "stdio"), {".toml": "toml"}),
    KnownServer("lua", ("lua-language-server",), {".lua": "lua"}, (".luarc.json", *_GIT), runs_project_code=True),
    KnownServer("zls", ("zls",), {".zig": "zig"}, ("build.zig", *_GIT), runs_project_code=True),
    KnownServer("ruby-lsp", ("ruby-lsp",), {".rb": "ruby"}, ("Gemfile", *_GIT), runs_project_code=True),
    KnownServer("intelephense", ("intelephense", "--stdio"), {".php": "php"}, ("composer.json", *_GIT)),
    KnownServer("jdtls", ("jdtls",), {".java": "java"}, ("pom.xml", "build.gradle", *_GIT), runs_project_code=True),
    KnownServer(
        "kotlin-language-server",
        ("kotlin-language-server",),
        {".kt": "kotlin", ".kts": "kotlin"},
        ("build.gradle.kts", "build.gradle", "pom.xml", *_GIT),
        runs_project_code=True,
    ),
    KnownServer("csharp-ls", ("csharp-ls",), {".cs": "csharp"}, runs_project_code=True),
    KnownServer(
        "sourcekit-lsp", ("sourcekit-lsp",), {".swift": "swift"}, ("Package.swift", *_GIT), runs_project_code=True
    ),
    KnownServer(
        "dart", ("dart", "language-server"), {".dart": "dart"}, ("pubspec.yaml", *_GIT), runs_project_code=True
    ),
    KnownServer(
        "elixir-ls",
        ("elixir-ls",),
        {".ex": "elixir", ".exs": "elixir"},
        ("mix.exs", *_GIT),
        runs_project_code=True,
    ),
    KnownServer(
        "haskell-language-server",
        ("haskell-language-server-wrapper", "--lsp"),
        {".hs": "haskell"},
        ("stack.yaml", "cabal.project", *_GIT),
        runs_project_code=True,
    ),
    KnownServer(
        "ocamllsp", ("ocamllsp",), {".ml": "ocaml", ".mli": "ocaml"}, ("dune-project", *_GIT), runs_project_code=True
    ),
    KnownServer(
        "terraform-ls", ("terraform-ls", "serve"), {".tf": "terraform"}, (".terraform", *_GIT), runs_project_code=True
    ),
    KnownServer("nil", ("nil",), {".nix": "nix"}, ("flake.nix", *_GIT)),
    KnownServer("svelte", ("svelteserver", "--stdio"), {".svelte": "svelte"}, _NODE, runs_project_code=True),
)

# Directories of a project with installed programs, below the root of a server or the workspace.
_LOCAL_BINS = (".venv/bin", "venv/bin", "node_modules/.bin")


def list_servers(config: Config) -> list[KnownServer]:
    """Return the configured servers, then the known ones that the configuration does not replace or disable.

    A configured server with the name of a known one changes only what it sets.
    """
    known = {server.name: server for server in KNOWN_SERVERS}
    servers: list[KnownServer] = []
    for name, own in config.lsp.items():
        base = known.pop(name, None)
        if not own.enabled:
            continue
        if own.command is None and base is None:
            continue  # reported by the check of the configuration
        argv = (own.command, *own.args) if own.command is not None else (*base.argv, *own.args) if base else ()
        languages = _read_file_types(own.file_types) or (base.languages if base else {})
        server = base or KnownServer(name, argv, languages)
        servers.append(
            server._replace(
                argv=argv,
                languages=languages,
                root_markers=own.root_markers or server.root_markers,
                settings=own.settings or server.settings,
                options=own.options or server.options,
                env=own.env,
                runs_project_code=server.runs_project_code and own.command is None,
                is_configured=own.command is not None,
            )
        )
    return [*servers, *known.values()]


def _read_file_types(types: Sequence[str]) -> dict[str, str]:
    """Return language ids by extension for `py`, `.py`, or `.py=python`."""
    languages: dict[str, str] = {}
    known = {ext: language for server in KNOWN_SERVERS for ext, language in server.languages.items()}
    for each in types:
        extension, _, language = each.partition("=")
        extension = extension if extension.startswith(".") else f".{extension}"
        languages[extension.lower()] = language or known.get(extension.lower(), extension[1:].lower())
    return languages


class Installed(NamedTuple):
    """A server that can be started: its program, and where it was found."""

    server: KnownServer
    program: str
    is_local: bool  # from the project itself


def find_servers(
    servers: Sequence[KnownServer], path: Path, roots: Sequence[Path], env: Mapping[str, str], *, is_trusted: bool
) -> list[Installed]:
    """Return the servers for a file, one of each role. Blocks.

    `roots`: the directories whose programs may be used if they are trusted, the workspace last. A program that a
    repository brings (`.venv`, `node_modules`, or a `PATH` that leads there) is used only in a trusted directory.
    """
    extension = path.suffix.lower()
    found: dict[str, Installed] = {}
    for server in servers:
        role = server.role or server.name
        if extension not in server.languages or role in found:
            continue
        if server.runs_project_code and not is_trusted:
            continue
        if (installed := find_server(server, roots, env, is_trusted=is_trusted)) is not None:
            found[role] = installed
    return list(found.values())


def find_server(
    server: KnownServer, roots: Sequence[Path], env: Mapping[str, str], *, is_trusted: bool
) -> Installed | None:
    """Return how to start a server; None if it is not installed, or does not fit what is installed. Blocks."""
    name = server.argv[0]
    if server.is_configured and "/" in name:
        program = (roots[-1] / Path(name).expanduser()).resolve()
        return Installed(server, str(program), False) if os.access(program, os.X_OK) else None
    if is_trusted:
        for root in roots:
            for directory in _LOCAL_BINS:
                program = root / directory / name
                if os.access(program, os.X_OK) and program.is_file() and _fits(server, program, roots):
                    return Installed(server, str(program), True)
    program = find_program(name, env, *(() if is_trusted and server.is_configured else roots[-1:]))
    if program is None or not _fits(server, Path(program), roots):
        return None
    return Installed(server, program, False)


def find_root(server: KnownServer, path: Path, workspace: Path) -> Path:
    """Return the directory of the project that a file belongs to: the nearest one below the workspace with a marker.

    Markers are tried in their order, so that a workspace file of a build tool wins over a file of each package.
    A file outside of the workspace belongs to the workspace's server. Blocks.
    """
    if not path.is_relative_to(workspace):
        return workspace
    levels = [level for level in path.parents if level.is_relative_to(workspace)]
    for marker in server.root_markers:
        if marker == ".git":
            continue  # the workspace itself is the last resort
        for level in levels:
            if (level / marker).exists():
                return level
    return workspace


def _fits(server: KnownServer, program: Path, roots: Sequence[Path]) -> bool:
    """Whether a TypeScript is a server itself, as it is since version 7, and the project has no earlier one."""
    if server.name != "typescript" or server.is_configured:
        return True
    own = [root / "node_modules/typescript/lib/tsc.js" for root in roots]
    versions = [_read_package_major(path) for path in (program.resolve(), *own) if path.exists()]
    return all(version is not None and version >= NATIVE_TYPESCRIPT for version in versions)


def _read_package_major(program: Path) -> int | None:
    """Return the major version of the npm package that contains a program."""
    for level in list(program.parents)[:4]:
        try:
            package = json.loads((level / "package.json").read_bytes()[: 1024 * 1024])
            return int(str(package["version"]).partition(".")[0])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return None
