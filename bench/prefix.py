"""How much of a request did the provider see before, byte for byte, so that its cache can hold it?

Goal: a step sends 99 % of the request before it again as it was, on every wire.
"""

from __future__ import annotations

import argparse
import itertools

from measure import print_table

from kedge.models.values import Endpoint, StepRequest, ToolSpec
from kedge.models.wires.registry import WIRES
from kedge.models.wires.requests import EncodedCache
from kedge.protocol.messages import Message, Part, Role, Text, ToolCall, ToolResult

STEPS = 10
FILE = "def answer() -> int:\n    return 42\n\n\n" * 100  # about 4 KB
SYSTEM = "You work in a project, with care. " * 300
TOOLS = [ToolSpec(f"tool{i}", "Does what it says. " * 20, {"type": "object"}) for i in range(15)]
MARK = b',"cache_control":{"type":"ephemeral"}'  # moves along, and is no part of what is cached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    header, rows = ("wire", "sent, KB", "seen before, KB", "of all", "of the one before"), list[tuple[str, ...]]()
    for wire in WIRES:
        sent = bodies(Endpoint(provider="p", model="m", base_url="http://h/v1", wire=wire), options.steps)
        total = sum(map(len, sent))
        seen = sum(common(before, after) for before, after in itertools.pairwise(sent))
        rows.append(
            (
                wire,
                f"{total / 1000:.0f}",
                f"{seen / 1000:.0f}",
                f"{seen / total:.1%}",
                f"{seen / sum(map(len, sent[:-1])):.1%}",
            )
        )
    print_table(f"{options.steps} steps of one turn", header, rows)


def bodies(endpoint: Endpoint, steps: int) -> list[bytes]:
    said, history, sent = EncodedCache(), [message("user", Text("go"))], list[bytes]()
    for i in range(steps):
        request = StepRequest(system=SYSTEM, history=history, tools=TOOLS)
        sent.append(WIRES[endpoint.wire].prepare_request(endpoint, request, said).body.replace(MARK, b""))
        history.append(message("assistant", ToolCall(f"c{i}", "tool1", "{}", True), place=f"a{i}", model="p/m"))
        history.append(message("tool", ToolResult(f"c{i}", "tool1", FILE, False), place=f"t{i}"))
    return sent


def message(role: Role, part: Part, place: str = "u", model: str | None = None) -> Message:
    return Message(id=place, session_id="s", run_id="r", role=role, parts=[part], created_at=0.0, model=model)


def common(before: bytes, after: bytes) -> int:
    """How far both are the same."""
    return next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )


if __name__ == "__main__":
    main()
