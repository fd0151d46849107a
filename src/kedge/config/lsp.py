"""Checks of `[lsp.NAME]`."""

from __future__ import annotations

from kedge.config.keys import Key
from kedge.config.schema import LspServerConfig

# Those of `kedge.lsp.known_servers`, which need no command.
KNOWN_SERVER_NAMES = frozenset(
    {
        *("basedpyright", "pyright", "ty", "pyrefly", "zuban", "pylsp", "ruff", "typescript"),
        *("typescript-language-server", "gopls", "rust-analyzer", "clangd", "bash-language-server", "json"),
        *("css", "html", "yaml", "taplo", "lua", "zls", "ruby-lsp", "intelephense", "jdtls"),
        *("kotlin-language-server", "csharp-ls", "sourcekit-lsp", "dart", "elixir-ls"),
        *("haskell-language-server", "ocamllsp", "terraform-ls", "nil", "svelte"),
    }
)


def find_server_problem(name: str, server: LspServerConfig) -> tuple[Key, str] | None:
    """Return the first mistake in the settings of a server, with its key below `lsp`, or None."""
    if name in KNOWN_SERVER_NAMES:
        return None
    if server.command is None:
        return (name,), f"needs command, a program to start: Kedge knows no language server {name!r}"
    if not server.command.strip():
        return (name, "command"), "is empty; write the program to start"
    if not server.file_types:
        return (name,), 'needs file_types, such as ["py"]'
    return None
