"""The options of `kedge run`, and the checks that need no server."""

from __future__ import annotations

import os

from kedge.cli.common import CONNECT_HELP, CONNECT_VALUES, HELP_FLAG
from kedge.cli.options import Options, UsageError, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = (
    """\
usage: kedge run [OPTION ...] [PROMPT ...]

Send a prompt and print the answer. Standard input from a pipe or a file is put before the prompt.

  -m, --model NAME        model, as PROVIDER/NAME (KEDGE_MODEL)
      --effort EFFORT     reasoning effort: minimal, low, medium, high, xhigh or max
  -s, --session ID        use this session (default: a new one)
  -C, --continue          use the most recent session of this directory
  -f, --file FILE         attach an image or a text file; can be repeated
      --system-file FILE  use this file as the system prompt
      --output-schema F   answer with JSON that matches the JSON schema in file F
      --max-steps N       fail after N model calls
      --max-cost DOLLARS  fail when the run has cost that much
      --mode MODE         what the agent may do without asking: plan, ask, auto-edit, auto or yolo
      --allow RULE        allow what this rule matches, like 'bash(git *)'; can be repeated
      --deny RULE         deny what this rule matches, in every mode but yolo; can be repeated
  -y, --yolo              never ask, allow everything in this run (same as --mode yolo; also --yes)
  -q, --quiet             print only the answer and errors
      --stream            print text as it is written (--no-stream: only the answer, at the end)
      --raw               on a terminal: print the answer as the model wrote it, without rendering Markdown
      --json              print the events of the run, one per line; with --stream, also the text as it grows
      --timeout S         cancel the run after S seconds
      --detach            print the run's ID and exit; the run continues
      --on-busy ACTION    if the session is busy: queue, steer, interrupt or reject
      --no-stdin          do not read standard input ("-" as a prompt always reads it)
      --run-id ID         ID of the run; submitting the same ID again does not start another run
"""
    + CONNECT_HELP
)

FLAGS = {
    **named("-q --quiet", "-C --continue", "-y --yolo", "--stream", "--no-stream", "--raw", "--json", "--detach"),
    "--no-stdin": "no-stdin",
    "--yes": "yolo",
}
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
MODES = ("plan", "ask", "auto-edit", "auto", "yolo")
VALUES = named(
    "-m --model", "--effort", "-s --session", "-f --file", "--system-file", "--output-schema", "--max-steps",
    "--max-cost", "--mode", "--allow", "--deny", "--timeout", "--on-busy", "--run-id",
)  # fmt: skip


def parse(argv: list[str]) -> Options:
    """Parse and check the arguments. Raises `UsageError`."""
    options = Options(argv, flags={**FLAGS, **HELP_FLAG}, values={**VALUES, **CONNECT_VALUES})
    options.seconds("timeout")
    options.seconds("connect-timeout")
    options.choice("on-busy", ("queue", "steer", "interrupt", "reject"))
    options.choice("mode", MODES)
    options.choice("effort", EFFORTS)
    options.integer("max-steps")
    options.dollars("max-cost")
    _check_run_id(options.get("run-id"))
    for one, other in (("session", "continue"), ("stream", "no-stream"), ("detach", "timeout"), ("detach", "json")):
        if options.has(one) and options.has(other):
            raise UsageError(f"Use either --{one} or --{other}, not both")
    return options


def run_overrides(options: Options) -> dict[str, Any]:
    """Settings of this run that override the configuration (`options` of `POST W/agent`). Reads the files they name."""
    given: dict[str, Any] = {
        "max_steps": options.integer("max-steps"),
        "max_cost": options.dollars("max-cost"),
        "mode": options.get("mode"),
        "allow": _read_rules(options, "allow"),
        "deny": _read_rules(options, "deny"),
        "effort": options.get("effort"),
    }
    if path := options.get("system-file"):
        from kedge.cli.run_input import read_system_prompt

        given["system"] = read_system_prompt(path)
    if path := options.get("output-schema"):
        from kedge.cli.run_input import read_output_schema

        given["output_schema"] = read_output_schema(path)
    return {name: value for name, value in given.items() if value not in (None, [])}


def _check_run_id(run_id: str | None) -> None:
    """Checked before it becomes part of a path."""
    if run_id is not None:
        from kedge.protocol.errors import Invalid
        from kedge.protocol.validation import check_run_id

        try:
            check_run_id(run_id)
        except Invalid as error:
            raise UsageError(
                f"Invalid --run-id {run_id[:200]!r}: {error.message.replace('run_id', 'a run ID')}"
            ) from None


def _read_rules(options: Options, name: str) -> list[str]:
    rules = [as_text(rule) for rule in options.all(name)]
    if rules:
        from kedge.config.rules import BadRule, read_rule  # slow to import, and most runs have no rules

        for rule in rules:
            try:
                read_rule(rule)
            except BadRule as error:
                raise UsageError(f"Invalid --{name} {rule[:100]!r}: {error.expected}") from None
    return rules


def as_text(argument: str) -> str:
    """Replace the surrogates that Python puts in place of bytes that are not UTF-8: the server rejects them."""
    return os.fsencode(argument).decode("utf-8", "replace")
