"""An MCP server over standard streams, on the standard library alone, that can misbehave. Run in a child process.

usage: python odd_server.py DIRECTORY [KIND]; DIRECTORY gets a line in `requests` for each message, the number of the
process in `pid`, and is where a task waits for the file `finish`. The kinds: modern, legacy, many (tools), slow (never
begins), mute (never answers), silent (legacy, ignores the probe), late (answers the probe after a legacy beginning),
deaf (reads nothing after its list), listless (never lists), wordy (has instructions).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PLACE = Path(sys.argv[1])
KIND = sys.argv[2] if len(sys.argv) > 2 else "modern"
FORM = {
    "mode": "form",
    "message": "Who are you?",
    "requestedSchema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 1}},
        "required": ["name"],
    },
}
NAMES = [
    "echo",
    "ask",
    "address",
    "again",
    "task",
    "hang",
    "die",
    "spawn",
    "flood",
    "garbage",
    "big",
    "progress",
    "env",
    "endless",
]
NOTHING: dict[str, Any] = {}
DISCOVERED: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": NOTHING},
} | ({"instructions": "Speak up."} if KIND == "wordy" else {})
waiting: dict[int, Any] = {}  # requests of a legacy call, by our id


def note(text: str) -> None:
    with (PLACE / "requests").open("a") as file:
        file.write(text + "\n")


def send(message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": content}], **more}


def list_tools() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    names = [f"tool_{number}" for number in range(150)] if KIND == "many" else NAMES
    if (PLACE / "more").exists():
        names = [*names, "later"]
    hints = {"echo": {"readOnlyHint": True}}
    tools = [
        {"name": name, "description": f"does {name} " * (20 if KIND == "many" else 1), "inputSchema": schema}
        | ({"annotations": hints[name]} if name in hints else {})
        for name in names
    ]
    return {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}


def call(id: Any, params: dict[str, Any]) -> dict[str, Any] | None:
    name, given = params["name"], params.get("arguments", {})
    match name:
        case "echo" | "later":
            return text(str(given.get("text")))
        case "env":
            return text(json.dumps(dict(os.environ)))
        case "ask" if KIND in ("legacy", "silent"):
            waiting[100] = id
            send({"id": 100, "method": "elicitation/create", "params": FORM})
            return None
        case "ask" | "address" | "again" if "inputResponses" not in params and "requestState" not in params:
            asked = (
                FORM
                if name == "ask"
                else {"mode": "url", "url": f"https://example.com/{'x' * 300}", "message": "Log in"}
            )
            requests = {} if name == "again" else {"who": {"method": "elicitation/create", "params": asked}}
            return {"resultType": "input_required", "inputRequests": requests, "requestState": f"state of {given}"}
        case "ask" | "address" | "again":
            return text(json.dumps([params.get("inputResponses"), params.get("requestState")]))
        case "task":
            return {"resultType": "task", "taskId": "t-1", "status": "working", "ttlMs": None, "pollIntervalMs": 100}
        case "endless":
            return {"resultType": "input_required", "requestState": "again"}
        case "hang":
            return None
        case "die":
            sys.stderr.write("it is all over\n")
            sys.stderr.flush()
            os._exit(3)
        case "spawn":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            return text(str(child.pid))
        case "flood":
            while True:
                send({"method": "notifications/message", "params": {"data": "x"}})
        case "garbage":
            sys.stdout.write("hello there\n{not json}\n\n")
            return text("after the garbage")
        case "big":
            return text("x" * 1_000_000)
        case "progress":
            token = params["_meta"]["progressToken"]
            for number in range(3):
                progress = {"progressToken": token, "progress": number + 1, "total": 3, "message": "working"}
                send({"method": "notifications/progress", "params": progress})
            return text("done")
        case _:
            return text(name)


def answer(message: dict[str, Any]) -> None:
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    result: dict[str, Any] | None = None
    match method:
        case "server/discover" if KIND == "legacy":
            send({"id": id, "error": {"code": -32601, "message": "no such method"}})
        case "server/discover" if KIND in ("silent", "late"):
            waiting[0] = id
        case "initialize" if KIND == "late":
            send({"id": waiting.pop(0), "result": DISCOVERED})
            send({"id": id, "error": {"code": -32601, "message": "no such method"}})
        case "server/discover":
            result = DISCOVERED
        case "initialize":
            info = {"name": "odd", "version": "1"}
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": info,
            }
        case "tools/list" if KIND == "listless":
            pass
        case "tools/list":
            result = list_tools()
        case "tools/call":
            result = call(id, params)
        case "tasks/get":
            task = {"resultType": "complete", "taskId": params["taskId"], "ttlMs": None, "pollIntervalMs": 100}
            result = {**task, "status": "working"}
            if (PLACE / "finish").exists():
                result = {**task, "status": "completed", "result": text("the task is done")}
        case "tasks/cancel":
            result = {"resultType": "complete"}
        case None if id in waiting:
            send({"id": waiting.pop(id), "result": text(json.dumps(message.get("result")))})
        case _:
            if id is not None and method is not None:
                send({"id": id, "error": {"code": -32601, "message": "no such method"}})
    if result is not None:
        send({"id": id, "result": result})


def main() -> None:
    (PLACE / "pid").write_text(str(os.getpid()))
    note("started")
    if KIND == "slow" or (PLACE / "slow").exists():
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        params = message.get("params", {})
        note(f"{message.get('method')} {params.get('name', params.get('taskId', ''))}".strip())
        if KIND != "mute":
            answer(message)
        if KIND == "deaf" and message.get("method") == "tools/list":
            time.sleep(600)
    note("ended")


if __name__ == "__main__":
    main()
