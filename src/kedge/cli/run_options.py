"""The options of `kedge run`, and what can be seen to be wrong with them without asking anybody."""

from __future__ import annotations

import os

from kedge.cli.options import Options, UsageError, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge run [OPTION ...] [PROMPT ...]

Sends a prompt and prints the answer. Standard input that is a pipe or a file comes before the prompt.

  -m, --model NAME        provider/model (KEDGE_MODEL)
      --effort EFFORT     minimal, low, medium or high: how much the model thinks first
  -s, --session ID        in this session; without it, in a new one
  -C, --continue          in the session of this directory that was used last
  -c, --cwd DIR           work in this directory instead of the current one
  -f, --file FILE         attach an image or a text file; may be given several times
      --system-file FILE  instead of the agent's own system prompt
      --output-schema F   the answer is JSON that the JSON schema in this file accepts
      --max-steps N       fail after that many steps of the model
      --max-cost DOLLARS  fail when the run has cost that much
      --mode MODE         plan, ask, auto-edit or yolo: what the agent may do by itself
      --allow RULE        allow what this rule matches, like 'bash(git *)'; may be given several times
      --deny RULE         refuse what this rule matches, whatever else allows it; likewise
  -q, --quiet             only the answer and errors
      --stream            print what is said while it is said (--no-stream: only the answer, at its end)
      --json              print the events of the run, one a line; with --stream the text as it grows, too
      --timeout S         cancel the run after that many seconds
      --detach            print the run's id and leave; the run goes on
      --on-busy WAY       if the session is busy: queue, steer, interrupt or reject
  -y, --yes               allow whatever the agent wants to do in this run
      --no-stdin          leave standard input alone;  -  as a prompt insists on it
      --run-id ID         name the run: the same id again is the same run
      --host ADDRESS      unix:///path/to.sock or tcp://127.0.0.1:PORT (KEDGE_HOST)
      --token-file FILE   the token for TCP (KEDGE_TOKEN)
      --data-dir DIR      whose server, if no host is named (KEDGE_DATA_DIR)
      --connect-timeout S give up when the server cannot be reached for that long (60)
  -h, --help              show this
"""

FLAGS = named(
    "-q --quiet",
    "-C --continue",
    "-y --yes",
    "-h --help",
    "--stream",
    "--no-stream",
    "--json",
    "--detach",
    "--no-stdin",
)
EFFORTS = ("minimal", "low", "medium", "high")
MODES = ("plan", "ask", "auto-edit", "yolo")
VALUES = named(
    "-m --model", "--effort", "-s --session", "-f --file", "--system-file", "--output-schema", "--max-steps",
    "--max-cost", "--mode", "--allow", "--deny", "-c --cwd", "--timeout", "--on-busy", "--run-id", "--host",
    "--token-file", "--data-dir", "--connect-timeout",
)  # fmt: skip


def parse(argv: list[str]) -> Options:
    options = Options(argv, flags=FLAGS, values=VALUES)
    options.seconds("timeout")
    options.seconds("connect-timeout")
    options.choice("on-busy", ("queue", "steer", "interrupt", "reject"))
    options.choice("mode", MODES)
    options.choice("effort", EFFORTS)
    options.whole("max-steps")
    options.dollars("max-cost")
    _check_run_id(options.get("run-id"))
    for one, other in (("session", "continue"), ("stream", "no-stream"), ("detach", "timeout"), ("detach", "json")):
        if options.has(one) and options.has(other):
            raise UsageError(f"--{one} and --{other} exclude each other")
    return options


def differing(options: Options) -> dict[str, Any]:
    """How this run differs from what is configured (`options` of `POST W/agent`); its files are read now."""
    given: dict[str, Any] = {
        "max_steps": options.whole("max-steps"),
        "max_cost": options.dollars("max-cost"),
        "mode": options.get("mode"),
        "allow": _rules(options, "allow"),
        "deny": _rules(options, "deny"),
        "effort": options.get("effort"),
    }
    if path := options.get("system-file"):
        from kedge.cli.run_input import system_prompt

        given["system"] = system_prompt(path)
    if path := options.get("output-schema"):
        from kedge.cli.run_input import output_schema

        given["output_schema"] = output_schema(path)
    return {name: value for name, value in given.items() if value not in (None, [])}


def _check_run_id(run_id: str | None) -> None:
    """Here already: it becomes part of a path."""
    if run_id is not None:
        from kedge.protocol.bounds import check_run_id
        from kedge.protocol.errors import Invalid

        try:
            check_run_id(run_id)
        except Invalid as error:
            raise UsageError(error.message) from None


def _rules(options: Options, name: str) -> list[str]:
    rules = [as_text(rule) for rule in options.all(name)]
    if rules:
        from kedge.config.rules import BadRule, read_rule  # costs nothing to those who give none

        for rule in rules:
            try:
                read_rule(rule)
            except BadRule as error:
                raise UsageError(f"--{name} {rule[:100]!r} cannot be used: {error.expected}") from None
    return rules


def as_text(argument: str) -> str:
    """An argument that is not UTF-8 has its bytes hidden in half surrogates, which no server takes."""
    return os.fsencode(argument).decode("utf-8", "replace")
