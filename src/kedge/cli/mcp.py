"""`kedge mcp`: add, list and remove MCP servers; test them, and log in to them."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_OK, EXIT_USAGE, find_directory, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error, print_json, print_table
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from kedge.config.load import Loaded
    from kedge.config.schema import McpServerConfig

HELP = """\
usage: kedge mcp add [OPTION ...] NAME -- COMMAND [ARGUMENT ...]
       kedge mcp add [OPTION ...] NAME --url URL
       kedge mcp list | remove NAME | test [NAME] | login NAME | logout NAME

Manage MCP servers, whose tools, prompts and resources the agent can use.

  add       add a server: a program to start, or an address
  list      list the servers with their state and where they are configured
  remove    remove a server from the file that it is in
  test      connect to a server, or to all, and list what they offer
  login     log in to a server in your browser
  logout    forget the login

  -u, --url URL           add: the address of the server
  -e, --env NAME=VALUE    add: a variable of the program; '${NAME}' takes it from Kedge's environment
  -H, --header TEXT       add: a header of each request, like 'Authorization: Bearer ${TOKEN}'
      --scope SCOPE       add, remove: user (your own file; default) or workspace (its kedge.toml)
      --timeout S         add: seconds that an answer of the server may take
      --client-id ID      add: client id for logins, if the server gave you one
      --callback-port N   add: port of this machine that the browser returns to after a login
      --force             add: replace a server of the same name
      --no-browser        login: only print the address to open
      --json              list, test: print JSON
"""
FLAGS = named("--force", "--no-browser", "--json")
VALUES = named(
    *("-u --url", "-e --env", "-H --header", "--scope", "--timeout"),
    *("--client-id", "--callback-port", "-t --transport"),
)
SCOPES = ("user", "workspace")
TRANSPORTS = ("stdio", "http", "sse")


def run(argv: list[str]) -> int:
    from kedge.config.errors import BadConfig
    from kedge.protocol.errors import KedgeError

    try:
        return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_dispatch)
    except BadConfig as error:
        for problem in error.problems:
            print_error(str(problem), EXIT_USAGE)
        return EXIT_USAGE
    except KedgeError as error:
        return print_error(error.message, EXIT_USAGE)


def _dispatch(options: Options) -> int:
    action, words = options.subcommand(ACTIONS)
    return action(words, options)


def _add(words: list[str], options: Options) -> int:
    from kedge.config.change import add_server, is_reference

    if not words:
        raise UsageError("Use kedge mcp add NAME -- COMMAND, or kedge mcp add NAME --url URL")
    name, *command = words
    values = _read_server(command, options)
    file = _choose_file(options)
    add_server(file, name, values, replaces=options.has("force"))
    print(f"Added the server {name} to {file}.")
    secrets = [*values.get("env", {}).values(), *values.get("headers", {}).values()]
    if not all(map(is_reference, secrets)) and file.stat().st_mode & 0o077:
        print_error(f"{file} can be read by other users; run chmod 600 on it, or use '${{NAME}}' for secrets", EXIT_OK)
    loaded = _load(options)
    for each in loaded.ignored:
        if each.file == str(file) and each.key.startswith(f"mcp.{name}"):
            print_error(f"It has no effect yet: {each.key} {each.why}", EXIT_OK)
            break
    return EXIT_OK


def _read_server(command: list[str], options: Options) -> dict[str, Any]:
    """Return the table of a new server."""
    url = options.get("url")
    transport = options.choice("transport", TRANSPORTS)
    if url is None and len(command) == 1 and command[0].startswith(("http://", "https://")) and transport != "stdio":
        url, command = command[0], []
    if url is not None and command:
        raise UsageError("A server has a command or an address, not both")
    if url is None and (not command or transport in ("http", "sse")):
        raise UsageError("Missing the command after '--', or --url")
    values: dict[str, Any] = {"url": url} if url is not None else {"command": command[0], "args": command[1:]}
    if values.get("args") == []:
        del values["args"]
    tables = {
        "env": dict(_split(each, "=", "--env", "NAME=VALUE") for each in options.all("env")),
        "headers": dict(_split(each, ":", "--header", "'Name: value'") for each in options.all("header")),
        "oauth": {
            **({"client_id": options.get("client-id")} if options.has("client-id") else {}),
            **({"callback_port": options.integer("callback-port", most=65535)} if options.has("callback-port") else {}),
        },
    }
    values |= {key: table for key, table in tables.items() if table}
    if (timeout_s := options.seconds("timeout")) is not None:
        values["timeout_s"] = timeout_s
    return values


def _split(text: str, separator: str, option: str, expected: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise UsageError(f"{option} expects {expected}")  # the text may be a secret
    return name.strip(), value if separator == "=" else value.strip()


def _remove(words: list[str], options: Options) -> int:
    from kedge.config.change import remove_from_file
    from kedge.config.keys import format_key

    name = only_name(words, "kedge mcp remove NAME")
    origin = find_origin(_load_leniently(options), name)
    file = _choose_file(options) if options.has("scope") or origin is None else origin
    if file.name == ".mcp.json":
        disable = f"kedge config set -w mcp.{name}.enabled false"
        raise UsageError(f"{name} is in {file}, which Kedge only reads; edit that file, or disable it: {disable}")
    key = format_key(("mcp", name))
    if not remove_from_file(file, key):
        raise UsageError(f"There is no server {name!r} in {file}. 'kedge mcp list' shows all")
    print(f"Removed the server {name} from {file}.")
    return EXIT_OK


def _list(words: list[str], options: Options) -> int:
    if words:
        raise UsageError(f"Unexpected argument {words[0]!r}")
    from kedge.cli.mcp_server import read_states

    loaded = _load(options)
    states = read_states(options) if loaded.config.mcp else {}
    rows = [_describe(name, server, loaded, states.get(name)) for name, server in loaded.config.mcp.items()]
    ignored = [each for each in loaded.ignored if each.key == "mcp" or each.key.startswith("mcp.")]
    if options.has("json"):
        print_json(rows)
    elif rows:
        table = [(row["name"], row["state"], _count(row), row["target"], row["file"] or "-") for row in rows]
        print_table([("SERVER", "STATE", "TOOLS", "RUNS", "FROM"), *table])
        for row in rows:
            if row["error"]:
                print_error(f"{row['name']}: {row['error']}", EXIT_OK)
    else:
        print_error("No MCP server is configured; add one with kedge mcp add", EXIT_OK)
    for each in ignored:
        print_error(visible_line(f"{each.file}{f':{each.line}' if each.line else ''}: {each.key} {each.why}"), EXIT_OK)
    return EXIT_OK


def _describe(name: str, server: McpServerConfig, loaded: Loaded, state: dict[str, Any] | None) -> dict[str, Any]:
    from kedge.config.show import mask_arguments, strip_credentials

    origin = find_origin(loaded, name)
    if server.url is not None:
        target = strip_credentials(server.url)
    else:
        import shlex

        target = shlex.join([server.command or "", *mask_arguments(server.args)])
    known = state or {}
    return {
        "name": name,
        "state": known.get("state", "not started") if server.enabled else "disabled",
        "tools": known.get("tools"),
        "error": known.get("error"),
        "enabled": server.enabled,
        "target": target,
        "file": None if origin is None else str(origin),
    }


def _count(row: dict[str, Any]) -> str:
    return "-" if row["tools"] is None else str(len(row["tools"]))


def find_origin(loaded: Loaded | None, name: str) -> Path | None:
    """Return the strongest file with settings of a server."""
    from pathlib import Path

    keys = () if loaded is None else loaded.origins.items()
    for wanted in ("command", "url"):
        for key, origin in keys:
            if key[:3] == ("mcp", name, wanted) and origin.name:
                return Path(origin.name)
    return None


def _load(options: Options) -> Loaded:
    from pathlib import Path

    from kedge.config.load import Loader

    return Loader().load(Path(os.path.realpath(find_directory(options.get("cwd")))), os.environ)


def _load_leniently(options: Options) -> Loaded | None:
    from kedge.config.errors import BadConfig

    try:
        return _load(options)
    except BadConfig:
        return None  # a broken server must be removable


def _choose_file(options: Options) -> Path:
    from pathlib import Path

    from kedge.config.change import file_for_scope
    from kedge.config.files import ConfigPaths

    scope = "workspace" if options.choice("scope", SCOPES) == "workspace" else "global"
    return file_for_scope(scope, ConfigPaths.from_env(), Path(os.path.realpath(find_directory(options.get("cwd")))))


def only_name(words: list[str], usage: str) -> str:
    if len(words) != 1:
        raise UsageError(f"Use {usage}")
    return words[0]


def _test(words: list[str], options: Options) -> int:
    from kedge.cli.mcp_server import test_servers

    return test_servers(words, options)


def _log_in(words: list[str], options: Options) -> int:
    from kedge.cli.mcp_server import log_in

    return log_in(only_name(words, "kedge mcp login NAME"), options)


def _log_out(words: list[str], options: Options) -> int:
    from kedge.cli.mcp_server import log_out

    return log_out(only_name(words, "kedge mcp logout NAME"), options)


ACTIONS: dict[str, Callable[[list[str], Options], int]] = {
    "add": _add,
    "list": _list,
    "remove": _remove,
    "test": _test,
    "login": _log_in,
    "logout": _log_out,
}
