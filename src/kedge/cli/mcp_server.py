"""`kedge mcp test`, `login` and `logout`, which a server does."""

from __future__ import annotations

import os
import sys

from kedge.cli.common import EXIT_FAILED, EXIT_OK, connect
from kedge.cli.options import Options, UsageError
from kedge.cli.output import print_error, print_json
from kedge.client.sync_client import Client
from kedge.http.http1 import escape
from kedge.protocol.text_safety import one_line, visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TEST_S = 240.0  # the server gives up earlier
WAIT_S = 2  # of one question whether the browser has answered; pasted text is read in between
MAX_STARTS = 3  # of a login whose server was started again


def test_servers(words: list[str], options: Options) -> int:
    with connect(options, name="kedge mcp") as client:
        client.transport.timeout_s = TEST_S
        names = words or [each["name"] for each in client.call("GET", "/mcp")["servers"] if each["state"] != "disabled"]
        if len(names) > 1 and words:
            raise UsageError("Use kedge mcp test [NAME]")
        if not names:
            print_error("No MCP server is configured; add one with kedge mcp add", EXIT_OK)
        tests = [client.call("POST", f"/mcp/{escape(name)}/test", {}) for name in names]
    if options.has("json"):
        print_json(tests)
    else:
        for each in tests:
            _print_test(each)
    return EXIT_OK if all(each["ok"] for each in tests) else EXIT_FAILED


def _print_test(test: dict[str, Any]) -> None:
    name = visible_line(test["name"])
    if not test["ok"]:
        hint = f"; run: kedge mcp login {name}" if test.get("needs_login") else ""
        print_error(f"{name}: {test['error']}{hint}", EXIT_FAILED)
        for line in test.get("stderr", "").splitlines()[-10:]:
            print(visible_line(f"    {line}"), file=sys.stderr)
        return
    version = " ".join(filter(None, [test.get("title", ""), test.get("version", "")]))
    times = f"connected in {test.get('connect_ms', 0)} ms, listed in {test.get('list_ms', 0)} ms"
    print(visible_line(f"{name}: {times} ({version or 'no name'}, MCP {test.get('protocol', '?')})"))
    for kind, field in (("tools", "tool"), ("prompts", "name"), ("resources", "uri")):
        offered = test.get(kind, [])
        if offered:
            print(f"  {len(offered)} {kind if len(offered) > 1 else kind[:-1]}")
        for each in offered:
            about = one_line(each.get("description") or each.get("title") or "", 100)
            print(visible_line(f"    {each[field]}{f'  {about}' if about else ''}"))


def log_in(name: str, options: Options) -> int:
    with connect(options, name="kedge mcp") as client:
        client.transport.timeout_s = TEST_S
        path = f"/mcp/{escape(name)}"
        state: dict[str, Any] = {"state": "none"}
        for _ in range(MAX_STARTS):
            url = client.call("POST", f"{path}/login", {})["url"]
            _show(url, options)
            state = _wait(client, path)
            if state["state"] != "none":
                break
            print_error("The server was started again; the login begins anew", EXIT_OK)
    if state["state"] != "done":
        return print_error(f"{name}: {state.get('error', 'the login did not end')}", EXIT_FAILED)
    print(f"Logged in to {name}.")
    return EXIT_OK


def _wait(client: Client, path: str) -> dict[str, Any]:
    """Wait for the end of a login; what is typed meanwhile is the address at which the browser ended."""
    while True:
        state = client.call("GET", f"{path}/login?wait={WAIT_S}")
        if state["state"] != "waiting":
            return state
        if (pasted := _read_pasted()) and not client.call("POST", f"{path}/login/answer", {"url": pasted})["accepted"]:
            print_error("That address does not belong to this login. Paste the whole address", EXIT_OK)


def _show(url: str, options: Options) -> None:
    print(f"Open this address to log in:\n\n  {url}\n", file=sys.stderr)
    if os.isatty(0):
        print("If the browser cannot show the last page, paste its address here.", file=sys.stderr)
    if not options.has("no-browser") and _has_browser():
        import webbrowser

        webbrowser.open(url)


def _has_browser() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def _read_pasted() -> str:
    import select

    if not os.isatty(0) or not select.select([0], [], [], 0)[0]:
        return ""
    return sys.stdin.readline().strip()


def log_out(name: str, options: Options) -> int:
    with connect(options, name="kedge mcp") as client:
        is_removed = client.call("POST", f"/mcp/{escape(name)}/logout", {})["removed"]
    print(f"Logged out of {name}." if is_removed else f"There was no login to {name}.")
    return EXIT_OK


def read_states(options: Options) -> dict[str, dict[str, Any]]:
    """Return what a running server says of its MCP servers, by name; nothing if none is running."""
    from kedge.cli.common import find_directory
    from kedge.client.environment import find_server
    from kedge.client.errors import ClientError
    from kedge.client.reconnect import Waiter
    from kedge.client.transport import Transport
    from kedge.protocol.address import AddressError

    try:
        location = find_server(
            host=options.get("host"), data_dir=options.get("data-dir"), token_file=options.get("token-file")
        )
        transport = Transport(location.as_unmanaged(), Waiter(), client="kedge mcp")
        body = {"path": find_directory(options.get("cwd"))}
        workspace = transport.request("POST", "/v1/workspaces", body)
        listed = transport.request("GET", f"/v1/workspaces/{workspace['id']}/mcp")
    except (ClientError, AddressError):
        return {}
    return {each["name"]: each for each in listed["servers"]}
