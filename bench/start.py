"""How long until the command says something, and until the server answers? How large is it then? Where does the time of
a cold run go?

Goals: `kedge --version` and `--help` within 3x `python -c pass`; the server ready within 1.5x an empty Starlette +
uvicorn server, and idle within 60 MiB.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

from _home import (
    KEDGE,
    PYTHON,
    Case,
    Home,
    Server,
    Spent,
    await_answer,
    end_orphan,
    new_home,
    print_cases,
    reap_orphans,
    run,
    started,
)
from _waterfall import print_waterfall
from measure import MIB, cpu_s_of, noise_told, percentile, print_table, rss_of, wait_quiet

from kedge.protocol.address import UnixAddress

COMMANDS = 30
STARTS = 15
SETTLE_S = 1.0  # the server loads its way to models after it is ready


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=COMMANDS)
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument(
        "--python", action="append", default=[], metavar="FILE", help="another Python that has Kedge; can be repeated"
    )
    options = parser.parse_args()
    wait_quiet()
    with noise_told():
        commands(options.commands)
    wait_quiet()
    with noise_told():
        servers(options.starts)
    wait_quiet()
    with noise_told():
        print_waterfall(options.starts)
    if options.python:
        wait_quiet()
        with noise_told():
            interpreters([PYTHON, *options.python], options.starts)


def commands(rounds: int) -> None:
    cases = {
        "python -c pass (baseline)": [PYTHON, "-c", "pass"],
        "kedge --version": [KEDGE, "--version"],
        "kedge --help": [KEDGE, "--help"],
    }
    taken = {name: Case(name) for name in cases}
    with new_home() as home:
        for command in cases.values():  # once for the disk's cache and the bytecode
            run(command, home.env, home.workspace)
        for _ in range(rounds):
            for name, command in cases.items():
                taken[name].add(run(command, home.env, home.workspace))
    print_cases(f"a command, {rounds} rounds", list(taken.values()))


def interpreters(pythons: list[str], rounds: int) -> None:
    """Compare whole commands under several versions of Python, in turns."""
    reap_orphans()
    taken: dict[str, dict[str, Case]] = {"--version": {}, "run, cold": {}, "run, warm": {}}
    for number in range(rounds + 1):
        for python in pythons:
            version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.strip()
            kedge = [python, "-m", "kedge"]
            with new_home() as home:
                spent = {"--version": run([*kedge, "--version"], home.env, home.workspace)}
                for name in ("run, cold", "run, warm"):
                    spent[name] = run([*kedge, "run", "-q", "Hello."], home.env, home.workspace)
                end_orphan(home.adopt().pid)
            for name, each in spent.items():
                case = taken[name].setdefault(version, Case(version))
                if number:  # the first round fills the disk's cache and writes bytecode
                    case.add(each)
    for name, cases in taken.items():
        print_cases(f"kedge {name}, {rounds} rounds", list(cases.values()))


def servers(rounds: int) -> None:
    """Each Kedge server finds the data directory that the one before it left, as it does every day."""
    empty, ours, first = Case("an empty server (baseline)"), Case("kedge serve"), Case("kedge serve, new directory")
    sizes: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        with new_home() as home:
            empty.add(start_empty(home.directory, home.env, sizes))
            for case in (first, ours):
                began = time.perf_counter()
                with home.serve() as server:
                    wall_s = time.perf_counter() - began
                    case.add(Spent(wall_s, server.cpu_s))
                    if case is ours:
                        note_sizes(home, server, sizes)
    for case in (empty, ours, first):
        del case.wall.seconds[0], case.cpu.seconds[0]  # filled the disk's cache
    print_cases(f"from the start of a server to its first answer, {rounds} rounds", [empty, ours, first])
    rows = [[name, f"{min(mib):.1f}", f"{percentile(mib, 50):.1f}"] for name, mib in sizes.items()]
    print_table("memory of an idle server (RSS)", ["", "best MiB", "p50 MiB"], rows)


def start_empty(directory: Path, env: dict[str, str], sizes: dict[str, list[float]]) -> Spent:
    path = directory / "empty.sock"
    began = time.perf_counter()
    with started([PYTHON, str(Path(__file__).with_name("_empty.py")), str(path)], env) as process:
        await_answer(process, lambda: UnixAddress(str(path)) if path.exists() else None)
        spent = Spent(time.perf_counter() - began, cpu_s_of(process.pid))
        sizes.setdefault("an empty server (baseline)", []).append(rss_of(process.pid) / MIB)
    return spent


def note_sizes(home: Home, server: Server, sizes: dict[str, list[float]]) -> None:
    time.sleep(SETTLE_S)
    sizes.setdefault("kedge serve", []).append(server.rss_bytes / MIB)
    home.run("run", "-q", "Hello.")
    sizes.setdefault("kedge serve, after the first run", []).append(server.rss_bytes / MIB)


if __name__ == "__main__":
    main()
