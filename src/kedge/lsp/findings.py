"""What `kedge doctor` says of language servers: those that would be started here, and why others are not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kedge.config.schema import Config
from kedge.config.trust import is_trusted
from kedge.files.listing import list_file_types
from kedge.lsp.known_servers import KNOWN_SERVERS, KnownServer, find_server, list_servers
from kedge.protocol.text_safety import one_line

MAX_MISSING = 12

Finding = tuple[bool | None, str]


def find_findings(directory: Path, config: Config, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is true of the file types near the top of the directory. Blocks, and starts nothing."""
    types = list_file_types(directory)
    if not config.agent.language_servers:
        yield True, "language servers: switched off by agent.language_servers"
        return
    trusted = is_trusted(directory, config.trusted, Path(env.get("HOME") or Path.home()))
    used: dict[str, set[str]] = {}  # file types by the name of the server
    done: set[tuple[str, str]] = set()  # role and file type
    untrusted: list[str] = []
    skipped: set[str] = set()
    missing: dict[str, list[str]] = {}  # programs by file type
    for server in list_servers(config):
        role = server.role or server.name
        wanted = {each for each in types & set(server.languages) if (role, each) not in done}
        if not wanted:
            continue
        if find_server(server, [directory], env, is_trusted=True) is None:
            for each in wanted:
                missing.setdefault(each, []).append(server.argv[0])
        elif _may_start(server, directory, env, is_trusted=trusted):
            used[server.name] = wanted
            done |= {(role, each) for each in wanted}
        else:
            untrusted.append(server.name)
            skipped |= wanted
    if used:
        shown = ", ".join(f"{name} ({' '.join(sorted(types))})" for name, types in used.items())
        yield True, f"language servers: {shown}"
    if untrusted:
        names = ", ".join(untrusted)
        advice = f"to use them: kedge config trust {one_line(str(directory), 200)}"
        yield None, f"Language servers that run programs of this directory, which is not trusted: {names}; {advice}"
    off = [name for name, own in config.lsp.items() if not own.enabled and types & _file_types(name)]
    if off:
        yield True, f"language servers that lsp.NAME.enabled switches off: {', '.join(off)}"
    lacking = sorted(set(missing) - skipped - {each for types in used.values() for each in types})
    if lacking:
        shown = ", ".join(f"{each} ({' or '.join(missing[each][:2])})" for each in lacking[:MAX_MISSING])
        yield None, f"No language server is installed for {shown}"


def _may_start(server: KnownServer, directory: Path, env: Mapping[str, str], *, is_trusted: bool) -> bool:
    if is_trusted:
        return True
    return not server.runs_project_code and find_server(server, [directory], env, is_trusted=False) is not None


def _file_types(name: str) -> set[str]:
    return {each for server in KNOWN_SERVERS if server.name == name for each in server.languages}


def _main(directory: str) -> None:
    from kedge.config.load import Loader

    path = Path(directory)
    for finding in find_findings(path, Loader().load(path, os.environ).config, os.environ):
        sys.stdout.write(f"{json.dumps(finding)}\n")


if __name__ == "__main__":
    _main(sys.argv[1])
