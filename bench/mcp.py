"""What do MCP servers cost: a call over standard streams, five idle servers, and one that does not answer?

Calls go to the same server, on the standard library, by its pipes alone (baseline), by Kedge's client, and by that of
the official SDK, one after another in each round. Goal: the client adds at most 2 ms (median).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _home import PYTHON, ROOT, Home, end_orphan, new_home, reap_orphans, rss_of
from measure import noise_told, print_table, wait_quiet

from kedge.jsonrpc.errors import PeerError
from kedge.jsonrpc.messages import Json
from kedge.jsonrpc.stdio import Command
from kedge.mcp.client import Client
from kedge.mcp.messages import InputRequest
from kedge.mcp.stdio import StdioTransport
from tests.support.pip import install_requirement

CALLS = 500
SERVERS = 5
ROUNDS = 5
ODD = str(ROOT / "tests" / "mcp" / "odd_server.py")
REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}
SDK_CLIENT = """
import asyncio, json, sys, time
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main(program, script, place, calls):
    parameters = StdioServerParameters(command=program, args=[script, place])
    async with Client(stdio_client(parameters)) as client:
        took = []
        for _ in range(calls):
            began = time.perf_counter()
            await client.call_tool("echo", {"text": "x"})
            took.append(time.perf_counter() - began)
    print(json.dumps(took))

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


class Unrecorded:
    """Implements `RecordedProcess` where there is no store."""

    mark = "bench"

    async def memory_bytes(self) -> int:
        return 0

    async def end(self) -> list[str]:
        return []

    async def forget(self) -> None:
        pass


class Watcher:
    can_elicit = False

    def on_progress(self, text: str) -> None:
        pass

    async def elicit(self, request: InputRequest) -> Json:
        raise AssertionError(request)


class Events:
    def on_change(self, what: str) -> None:
        pass

    def on_closed(self, error: PeerError) -> None:
        raise AssertionError(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    packages = install_requirement("mcp==2.3.0")
    reap_orphans()
    wait_quiet()
    with noise_told(), tempfile.TemporaryDirectory() as place:
        compare_calls(place, packages, given.calls)
        compare_starts(given.rounds)


def compare_calls(place: str, packages: Path, calls: int) -> None:
    took = {
        "pipes alone (baseline)": call_by_pipes(place, calls),
        "Kedge's client": asyncio.run(call_by_kedge(place, calls)),
        "the official SDK's client": call_by_sdk(place, packages, calls),
    }
    base = statistics.median(took["pipes alone (baseline)"])
    rows = [
        [name, f"{statistics.median(each) * 1e3:.2f}", f"{quantile(each, 0.99) * 1e3:.2f}", added(each, base)]
        for name, each in took.items()
    ]
    print_table(f"{calls} calls over standard streams", ["", "p50 ms", "p99 ms", "added, p50 ms"], rows)


def added(took: list[float], base: float) -> str:
    return f"{(statistics.median(took) - base) * 1e3:.2f}"


def call_by_pipes(place: str, calls: int) -> list[float]:
    line = json.dumps(REQUEST).encode() + b"\n"
    took: list[float] = []
    with subprocess.Popen([PYTHON, ODD, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for _ in range(calls):
            began = time.perf_counter()
            server.stdin.write(line)
            server.stdin.flush()
            server.stdout.readline()
            took.append(time.perf_counter() - began)
    return took


async def call_by_kedge(place: str, calls: int) -> list[float]:
    async def record(pid: int) -> Unrecorded:
        del pid
        return Unrecorded()

    command = Command((PYTHON, ODD, place), dict(os.environ), Path(place), Path("/nowhere"))
    client = Client(StdioTransport(command, record), Events())
    await client.connect()
    took: list[float] = []
    watcher = Watcher()
    for _ in range(calls):
        began = time.perf_counter()
        await client.call_tool("echo", {"text": "x"}, watcher)
        took.append(time.perf_counter() - began)
    await client.close()
    return took


def call_by_sdk(place: str, packages: Path, calls: int) -> list[float]:
    env = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", SDK_CLIENT, PYTHON, ODD, place, str(calls)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compare_starts(rounds: int) -> None:
    """A first prompt that starts the server, and the server's memory after it."""
    kinds = {"none configured": [], "five servers": ["modern"] * SERVERS, "one that never answers": ["slow"]}
    walls: dict[str, list[float]] = {name: [] for name in kinds}
    warm: dict[str, list[float]] = {name: [] for name in kinds}
    memory: dict[str, list[int]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, servers in kinds.items():
            with new_home() as home:
                configure(home, servers)
                walls[name].append(home.run("run", "-q", '[[fake text="ok"]]').wall_s)
                warm[name].append(home.run("run", "-q", '[[fake text="ok"]]').wall_s)
                pid = home.adopt().pid
                memory[name].append(rss_of(pid))
                end_orphan(pid)
    rows = [
        [
            name,
            f"{statistics.median(walls[name]) * 1e3:.0f}",
            f"{statistics.median(warm[name]) * 1e3:.0f}",
            f"{statistics.median(memory[name]) / 2**20:.1f}",
        ]
        for name in kinds
    ]
    header = ["", "first prompt, cold ms", "second prompt ms", "server MiB"]
    print_table(f"kedge run with MCP servers, median of {rounds}", header, rows)


def configure(home: Home, kinds: list[str]) -> None:
    tables: list[str] = []
    for number, kind in enumerate(kinds):
        place = home.directory / f"mcp-{number}"
        place.mkdir()
        args: list[Any] = [ODD, str(place), kind]
        tables.append(f"[mcp.s{number}]\ncommand = {json.dumps(PYTHON)}\nargs = {json.dumps(args)}\n")
    file = home.directory / "config" / "kedge" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(tables))


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    main()
