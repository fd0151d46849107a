"""Does a server keep something of every prompt that it ever had, or of every command that it ever ran?

Goal: after 10,000 prompts it is at most 1.3x as large as after 1,000; also with `--tools`, where each prompt reads a
file and runs a command.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from _home import Server, new_home
from measure import MIB, noise_told, print_table, wait_quiet

PROMPTS = 10_000
BASE = 1_000
SESSION = 50  # prompts in a session, one after the other
CLIENTS = 8
TOOL_CALLS = [
    {"name": "view", "input": {"path": "hello.txt"}},
    {"name": "bash", "input": {"command": "seq 1000"}},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=int, nargs="?", default=PROMPTS)
    parser.add_argument("--tools", action="store_true", help="with a tool round in each prompt")
    options = parser.parse_args()
    wait_quiet()
    with noise_told():
        soak(options.prompts, has_tools=options.tools)


def soak(prompts: int, *, has_tools: bool) -> None:
    base = min(BASE, prompts // 2)
    with new_home() as home, home.serve() as server:
        (home.workspace / "hello.txt").write_text("hello world\n")
        if has_tools:
            home.model().request("POST", "/_fake/plan", {"tool_calls": TOOL_CALLS})
        sizes = {0: server.rss_bytes / MIB}
        path, done, began = server.join(home.workspace), 0, time.perf_counter()
        for stop in sorted({base, prompts // 4, prompts // 2, prompts}):
            play(server, path, stop - done)
            done = stop
            sizes[stop] = server.rss_bytes / MIB
        pace = prompts / (time.perf_counter() - began)
    rows = [
        [f"after {count:,}{' (baseline)' if count == base else ''}", f"{mib:.1f}", f"{mib / sizes[base]:.2f}"]
        for count, mib in sizes.items()
    ]
    what = f"{prompts:,} prompts{' with a tool round each' if has_tools else ''}, {pace:.0f} a second"
    print_table(f"memory of one server over {what}", ["", "MiB", "x baseline"], rows)


def play(server: Server, path: str, count: int) -> None:
    """So many prompts, by clients that work at the same time."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(partial(talk, server, path), sizes_of_sessions(count)))


def sizes_of_sessions(count: int) -> Iterator[int]:
    while count > 0:
        yield min(SESSION, count)
        count -= SESSION


def talk(server: Server, path: str, prompts: int) -> None:
    wire = server.transport()
    session_id = wire.request("POST", f"{path}/sessions", {})["id"]
    for _ in range(prompts):
        body = {"session_id": session_id, "prompt": "Hello.", "permissions": "allow"}
        run_id = wire.request("POST", f"{path}/agent", body)["run_id"]
        run = wire.request("GET", f"{path}/runs/{run_id}?wait=30")
        assert run["state"] == "completed", run
    wire.close()


if __name__ == "__main__":
    main()
