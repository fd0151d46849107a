"""What does a run with one tool round cost, and how does codex do the same?

The model asks for hello.txt, reads it, and answers; both sides get an instant model of their own wire. codex is taken
from PATH, or from the variable CODEX; without it, only Kedge is measured. Goal: a whole run faster than codex's, warm
and cold. How long it is from the model's last byte to the end is asked by agent_turn.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from _home import PYTHON, Case, Home, Spent, end_orphan, new_home, print_cases, reap_orphans, run
from measure import noise_told, wait_quiet

ROUNDS = 15
CALLS = {
    "Read hello.txt.": {"name": "view", "input": {"path": "hello.txt"}},
    "Show hello.txt.": {"name": "bash", "input": {"command": "cat hello.txt"}},  # as codex does it
}
PROMPT, BY_SHELL = CALLS
CODEX_CONFIG = """\
model = "fake"
model_provider = "fake"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.fake]
name = "fake"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    reap_orphans()
    wait_quiet()
    python, warm, cold = Case("python -c pass (baseline)"), Case("kedge run, warm"), Case("kedge run, cold")
    shell, theirs = Case("kedge run, warm, with a command"), Case("codex exec, with a command")
    with noise_told(), new_home() as home, new_home() as started_anew, codex(home.directory) as command:
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
                    *([(theirs, in_codex(command, home))] if command else []),
                ]
                for case, one in spent if i >= 0 else ():
                    case.add(one)
    print_cases(f"one tool round, {rounds} rounds", [python, warm, shell, cold, *([theirs] if command else [])])
    if not command:
        print("codex was not found: put it on PATH, or name it with CODEX")


def from_nothing(home: Home) -> Spent:
    spent = home.run("run", "-q", PROMPT)
    server = end_orphan(home.adopt().pid)
    return Spent(spent.wall_s, spent.cpu_s + server.cpu_s)


@contextmanager
def codex(directory: Path) -> Generator[list[str]]:
    """The command, with a model; nothing if codex is not here."""
    program = os.environ.get("CODEX") or shutil.which("codex")
    if not program:
        yield []
        return
    model = Path(__file__).with_name("_responses.py")
    process = subprocess.Popen([PYTHON, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        where = directory / "codex"
        where.mkdir()
        (where / "config.toml").write_text(CODEX_CONFIG.format(port=int(process.stdout.readline())))
        yield [program, "exec", "--skip-git-repo-check"]
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def in_codex(command: list[str], home: Home) -> Spent:
    env = {**home.env, "CODEX_HOME": str(home.directory / "codex"), "FAKE_KEY": "key-for-benchmarks"}
    return run([*command, PROMPT], env, home.workspace, stderr=subprocess.DEVNULL)  # it tells its whole story there


if __name__ == "__main__":
    main()
