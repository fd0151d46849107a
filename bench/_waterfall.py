"""Where the time of a cold `kedge run` goes: moments of both processes, and imports of the server by package."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from pathlib import Path

from _home import KEDGE, PYTHON, Home, end_orphan, new_home, reap_orphans
from measure import percentile, print_table

TRACED = Path(__file__).with_name("traced")
MOMENTS = (
    "the client's interpreter runs",
    "the client starts the server",
    "the server's interpreter runs",
    "it imports the server",
    "it opens the store",
    "it listens",
    "it imports the agent",
    "the client sends the prompt",
    "the first request goes to the model",
    "the first byte of the answer is back",
    "the client exits",
)
MAX_PACKAGES = 20


def print_waterfall(rounds: int) -> None:
    """Print the median of each moment, in milliseconds since the start of the command, over `rounds` cold runs."""
    reap_orphans()
    runs = [measure_run() for _ in range(rounds + 1)][1:]  # the first one fills the disk's cache
    rows: list[list[str]] = []
    before = 0.0
    for moment in MOMENTS:
        at = percentile([run[moment] for run in runs if moment in run] or [0.0], 50)
        rows.append([moment, f"{at:.0f}", f"{at - before:+.0f}"])
        before = at
    print_table(f"a cold run, median of {rounds} rounds", ["", "ms", "since the line above"], rows)
    print_imports()


def measure_run() -> dict[str, float]:
    """Return the moments of one cold run, in milliseconds since its start."""
    with new_home() as home:
        trace = home.directory / "trace"
        began = time.monotonic_ns()
        subprocess.run(
            [KEDGE, "run", "-q", "Hello."],
            env=traced_env(home, trace),
            cwd=home.workspace,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        ended = time.monotonic_ns()
        end_orphan(home.adopt().pid)
        found = read_moments(trace, home.model_address.port)
        found["the client exits"] = ended
        return {moment: (at - began) / 1e6 for moment, at in found.items()}


def traced_env(home: Home, trace: Path) -> dict[str, str]:
    return {**home.env, "PYTHONPATH": str(TRACED), "KEDGE_BENCH_TRACE": str(trace)}


def read_moments(trace: Path, model_port: int) -> dict[str, int]:
    lines = [line.split(" ", 3) for line in trace.read_text().splitlines()]
    client = lines[0][0]
    found: dict[str, int] = {}

    def note(moment: str, at: str) -> None:
        found.setdefault(moment, int(at))

    for pid, at, event, detail in lines:
        if pid == client:
            if event == "interpreter":
                note("the client's interpreter runs", at)
            elif event == "subprocess.Popen":
                note("the client starts the server", at)
            elif event == "socket.connect" and "it listens" in found:
                note("the client sends the prompt", at)
        elif event == "interpreter":
            note("the server's interpreter runs", at)
        elif event == "import":
            note("it imports the agent" if "agent.agent" in detail else "it imports the server", at)
        elif event == "sqlite3.connect":
            note("it opens the store", at)
        elif event == "socket.bind":
            note("it listens", at)
        elif event == "socket.connect" and str(model_port) in detail:
            note("the first request goes to the model", at)
        elif event == "answer":
            note("the first byte of the answer is back", at)
    return found


def print_imports() -> None:
    """Print the time that the server's process spends in imports, by package, and how many modules each has."""
    code = "import kedge.cli.serve, kedge.server.serve, kedge.agent.lazy_agent, kedge.agent.agent"
    done = subprocess.run([PYTHON, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    spent: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for own_us, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr):
        parts = name.split(".")
        package = ".".join(parts[:2]) if parts[0] == "kedge" else parts[0]
        spent[package] += int(own_us)
        modules[package] += 1
    rows = [[package, f"{us / 1e3:.1f}", str(modules[package])] for package, us in spent.most_common(MAX_PACKAGES)]
    rows.append(["all", f"{sum(spent.values()) / 1e3:.1f}", str(sum(modules.values()))])
    print_table("imports of the server and the agent (with the cost of tracing)", ["", "ms", "modules"], rows)
