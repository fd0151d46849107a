"""What `kedge doctor` says of language servers."""

from __future__ import annotations

from pathlib import Path

from kedge.config.lsp import KNOWN_SERVER_NAMES
from kedge.config.schema import AgentConfig, Config, LspServerConfig
from kedge.lsp.findings import find_findings
from kedge.lsp.known_servers import KNOWN_SERVERS


def install(directory: Path, name: str) -> None:
    program = directory / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)


def find(project: Path, config: Config) -> dict[str, bool | None]:
    env = {"PATH": str(project.parent / "bin"), "HOME": str(project.parent / "home")}
    return {text: is_ok for is_ok, text in find_findings(project, config, env)}


def test_found_missing_untrusted_and_disabled_servers_are_named(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    for name in ("src/a.py", "main.rs", "b.ts", "c.go"):
        (project / name).write_text("")
    for name in ("pyright-langserver", "rust-analyzer", "ruff"):
        install(tmp_path / "bin", name)
    install(project / "node_modules" / ".bin", "typescript-language-server")
    off = LspServerConfig(enabled=False)
    found = find(project, Config(lsp={"ruff": off}))
    text = "\n".join(found)
    assert found["language servers: pyright (.py)"] is True
    assert found["language servers that lsp.NAME.enabled switches off: ruff"] is True
    assert "not trusted: typescript-language-server, rust-analyzer; to use them: kedge config trust" in text
    assert found["No language server is installed for .go (gopls)"] is None
    trusted = find(project, Config(trusted=(str(project),)))
    assert "rust-analyzer (.rs)" in "\n".join(trusted)
    assert not any("not trusted" in each for each in trusted)
    (only,) = find(project, Config(agent=AgentConfig(language_servers=False)))
    assert "switched off" in only


def test_a_directory_without_source_files_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    assert find(tmp_path / "project", Config()) == {}


def test_the_configuration_knows_the_same_names() -> None:
    assert {server.name for server in KNOWN_SERVERS} == KNOWN_SERVER_NAMES
