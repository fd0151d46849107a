"""What does a whole `kedge run` cost with a model that answers at once, warm and cold?

Goals: within 12x `python -c pass` when a server is there, within 60x when there is none.
"""

from __future__ import annotations

import argparse

from _home import PYTHON, Case, Home, Spent, end_orphan, new_home, print_cases, reap_orphans, run
from measure import noise_told, wait_quiet

WARM = 30
COLD = 10
PROMPT = ("run", "-q", "Hello.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", type=int, default=WARM)
    parser.add_argument("--cold", type=int, default=COLD)
    options = parser.parse_args()
    reap_orphans()
    wait_quiet()
    with noise_told():
        warm(options.warm)
    wait_quiet()
    with noise_told():
        cold(options.cold)


def warm(rounds: int) -> None:
    """The CPU is the command's alone; the server's is beside it."""
    python, version, ours = Case("python -c pass (baseline)"), Case("kedge --version"), Case("kedge run, warm")
    served = Case("  its server")
    with new_home() as home, home.serve() as server:
        for _ in range(3):
            home.run(*PROMPT)
        for _ in range(rounds):
            python.add(bare(home))
            version.add(home.run("--version"))
            cpu_s = server.cpu_s
            spent = home.run(*PROMPT)
            ours.add(spent)
            served.add(Spent(spent.wall_s, server.cpu_s - cpu_s))
    served.cpu.seconds = [sum(served.cpu.seconds) / rounds] * rounds  # its clock ticks too slowly for one run
    print_cases(f"a whole command, {rounds} rounds", [python, version, ours, served])


def cold(rounds: int) -> None:
    """The server that each command starts is ended before the next; its CPU is counted with it."""
    python, again, first = Case("python -c pass (baseline)"), Case("kedge run, cold"), Case("kedge run, new directory")
    for _ in range(rounds + 1):
        with new_home() as home:
            for case in (first, again):
                python.add(bare(home))
                spent = home.run(*PROMPT)
                server = end_orphan(home.adopt().pid)
                case.add(Spent(spent.wall_s, spent.cpu_s + server.cpu_s))
    for case in (python, again, first):
        del case.wall.seconds[0], case.cpu.seconds[0]  # filled the disk's cache
    print_cases(f"a whole command that starts a server, {rounds} rounds", [python, again, first])


def bare(home: Home) -> Spent:
    return run([PYTHON, "-c", "pass"], home.env, home.workspace)


if __name__ == "__main__":
    main()
