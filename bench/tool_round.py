"""What does a run with one tool round cost?

The model asks for hello.txt, reads it, and answers at once. How long it is from the model's last byte to the end is
asked by agent_turn.py; how others do the same, by bench/peers.
"""

from __future__ import annotations

import argparse

from _home import PYTHON, Case, Home, Spent, end_orphan, new_home, print_cases, reap_orphans, run
from measure import noise_told, wait_quiet

ROUNDS = 15
CALLS = {
    "Read hello.txt.": {"name": "view", "input": {"path": "hello.txt"}},
    "Show hello.txt.": {"name": "bash", "input": {"command": "cat hello.txt"}},
}
PROMPT, BY_SHELL = CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    reap_orphans()
    wait_quiet()
    python, warm, cold = Case("python -c pass (baseline)"), Case("kedge run, warm"), Case("kedge run, cold")
    shell = Case("kedge run, warm, with a command")
    with noise_told(), new_home() as home, new_home() as started_anew:
        for each in (home, started_anew):
            (each.workspace / "hello.txt").write_text("hello world\n")
            for prompt, call in CALLS.items():
                steps = [{"tool_calls": [call]}, {"text": "FAKE-ANSWER-OK"}]
                each.model().request("POST", "/_fake/on", {"plans": steps, "prompt": prompt})
        with home.serve():
            for i in range(-1, rounds):  # the first fills caches
                spent = [
                    (python, run([PYTHON, "-c", "pass"], home.env, home.workspace)),
                    (warm, home.run("run", "-q", PROMPT)),
                    (shell, home.run("run", "-q", BY_SHELL)),
                    (cold, from_nothing(started_anew)),
                ]
                for case, one in spent if i >= 0 else ():
                    case.add(one)
    print_cases(f"one tool round, {rounds} rounds", [python, warm, shell, cold])


def from_nothing(home: Home) -> Spent:
    spent = home.run("run", "-q", PROMPT)
    server = end_orphan(home.adopt().pid)
    return Spent(spent.wall_s, spent.cpu_s + server.cpu_s)


if __name__ == "__main__":
    main()
