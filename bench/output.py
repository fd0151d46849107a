"""What does a command cost that says 100 MB?

Goals: bounded memory; and not much slower than the same command whose output is thrown away by `cat`.
"""

from __future__ import annotations

import argparse
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from _home import Home, Server, new_home
from measure import MIB, Samples, forget_peak_of, noise_told, peak_rss_of, print_latencies, print_table, wait_quiet

MB = 100
ROUNDS = 5
KINDS = {
    "short lines": "yes 'INFO a line as build tools print them, of about sixty characters'",
    "one endless line": "tr '\\0' x < /dev/zero",
    "colors and umlauts": r"yes $'\e[32mgrün\e[0m ✓ tests/test_straße.py::test_größe'",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=MB)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    wait_quiet()
    with noise_told(), new_home() as home, home.serve() as server:
        run(home, server, "echo warm")
        for name, words in KINDS.items():
            measure(home, server, name, f"{words} | head -c {options.mb}000000", options)


def measure(home: Home, server: Server, name: str, command: str, options: argparse.Namespace) -> None:
    plain, ours, health = (
        Samples("… | cat >/dev/null (baseline)"),
        Samples("the bash tool"),
        Samples("health meanwhile"),
    )
    before = server.rss_bytes
    forget_peak_of(server.pid)
    for _ in range(options.rounds):
        with plain.timed():
            subprocess.run(["bash", "-c", f"{{ {command}; }} | cat >/dev/null"], cwd=home.workspace, check=True)
        with asked_meanwhile(server, health), ours.timed():
            run(home, server, command)
    peak, after = peak_rss_of(server.pid), server.rss_bytes
    print_latencies(f"{options.mb} MB of {name}, {options.rounds} rounds", [plain, ours])
    print_latencies("GET /v1/health while it runs", [health])
    rows = [
        [what, f"{size / MIB:.1f}", f"{(size - before) / MIB:+.1f}"]
        for what, size in (("before", before), ("peak", peak), ("after", after))
    ]
    pace = options.mb / ours.p50
    print_table(f"memory of the server; {pace:.0f} MB/s", ["", "MiB", "grown"], rows)


def run(home: Home, server: Server, command: str) -> None:
    """A run whose only call is this command."""
    prompt = f"Run it {time.monotonic_ns()}."
    call = {"name": "bash", "input": {"command": command}}
    home.model().request(
        "POST", "/_fake/on", {"plans": [{"text": "", "tool_calls": [call]}, {"text": "Done."}], "prompt": prompt}
    )
    wire, path = server.transport(), server.join(home.workspace)
    session_id = wire.request("POST", f"{path}/sessions", {"title": "named"})["id"]
    body = {"session_id": session_id, "prompt": prompt, "permissions": "allow"}
    run_id = wire.request("POST", f"{path}/agent", body)["run_id"]
    ended = wire.request("GET", f"{path}/runs/{run_id}?wait=60")
    assert ended["state"] == "completed", ended
    wire.request("DELETE", f"{path}/sessions/{session_id}")
    wire.close()


@contextmanager
def asked_meanwhile(server: Server, samples: Samples) -> Generator[None]:
    """Another client wants to know whether the server is there, over and over."""
    is_over = threading.Event()

    def ask() -> None:
        wire = server.transport()
        while not is_over.wait(0.02):
            with samples.timed():
                wire.request("GET", "/v1/health")
        wire.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    main()
