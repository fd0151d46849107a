"""What does one hook add to a tool call?

A run whose model views a file and answers at once, without hooks (baseline), with one that no matcher matches, with the
least that a command can do, and with a Python script that reads its input, one after another in each round.
"""

from __future__ import annotations

import argparse
import contextlib

from _home import new_home
from agent_turn import Desk
from measure import Samples, noise_told, percentile, print_table, wait_quiet

ROUNDS = 60
WARM = 5
PROMPT = "Read hello.txt."
CALL = {"name": "view", "input": {"path": "hello.txt"}}
HOOKS = {
    "no hook (baseline)": "",
    "a hook for another tool": '[[hooks.PreToolUse]]\nmatcher = "Write"\ncommand = "true"\n',
    "`true` before the call": '[[hooks.PreToolUse]]\nmatcher = "Read"\ncommand = "true"\n',
    "a Python script before the call": '[[hooks.PreToolUse]]\nmatcher = "Read"\ncommand = \'exec python3 -c'
    ' "import json, sys; json.load(sys.stdin)"\'\n',
    "`true` after the call": '[[hooks.PostToolUse]]\nmatcher = "Read"\ncommand = "true"\n',
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    wait_quiet()
    cases: list[tuple[Samples, Desk]] = []
    with noise_told(), contextlib.ExitStack() as ends:
        for name, hooks in HOOKS.items():
            home = ends.enter_context(new_home())
            (home.workspace / "hello.txt").write_text("hello world\n")
            home.model().request(
                "POST", "/_fake/on", {"plans": [{"tool_calls": [CALL]}, {"text": "done"}], "prompt": PROMPT}
            )
            config = home.directory / "config" / "kedge" / "config.toml"
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(hooks)
            cases.append((Samples(name), Desk(home, ends.enter_context(home.serve()))))
        for index in range(-WARM, rounds):
            for samples, desk in cases:
                if index < 0:
                    desk.ask(PROMPT)
                    continue
                with samples.timed():
                    desk.ask(PROMPT)
        base = cases[0][0]
        rows: list[list[str]] = []
        for each, _ in cases:
            times = [percentile(each.seconds, part) * 1e3 for part in (50, 95)]
            added = [time - percentile(base.seconds, part) * 1e3 for time, part in zip(times, (50, 95), strict=True)]
            rows.append([each.name, *(f"{time:.1f}" for time in times), *(f"{time:+.1f}" for time in added)])
        print_table(f"prompt to end with one call, {rounds} rounds", ["", "p50 ms", "p95 ms", "p50 +", "p95 +"], rows)


if __name__ == "__main__":
    main()
