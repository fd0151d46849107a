"""A language server that behaves as its arguments say. Each line of a file that contains `bad` is an error.

silent      answers nothing at all
late        publishes diagnostics of every text only after the next change
unversioned names no versions, and publishes the errors of the earlier text once more after a change
flood       sends progress without end after the first document was opened
grow        takes memory after the first document was opened
garbage     prints lines that are no messages
die         ends at the first document
deaf        does not read its input after `initialize`
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

BEHAVIOR = set(sys.argv[1:])
held: list[bytearray] = []
last: dict[str, list[dict[str, Any]]] = {}


def read() -> dict[str, Any] | None:
    length = 0
    while (line := sys.stdin.buffer.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return json.loads(sys.stdin.buffer.read(length)) if length else None


def send(**message: Any) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
    sys.stdout.buffer.flush()


def find_errors(text: str) -> list[dict[str, Any]]:
    return [
        {"range": {"start": {"line": i, "character": 0}, "end": {"line": i, "character": 3}}, "message": line}
        for i, line in enumerate(text.split("\n"))
        if "bad" in line
    ]


def publish(uri: str, version: int, text: str) -> None:
    errors = find_errors(text)
    if "late" in BEHAVIOR:
        if uri in last:
            send_diagnostics(uri, last[uri], version - 1)
    elif "unversioned" in BEHAVIOR:
        send_diagnostics(uri, last.get(uri, []), None)
        send_diagnostics_after_next_answer.append((uri, errors))
    else:
        send_diagnostics(uri, errors, version)
    last[uri] = errors


send_diagnostics_after_next_answer: list[tuple[str, list[dict[str, Any]]]] = []


def send_diagnostics(uri: str, errors: list[dict[str, Any]], version: int | None) -> None:
    params: dict[str, Any] = {"uri": uri, "diagnostics": errors}
    if version is not None:
        params["version"] = version
    send(method="textDocument/publishDiagnostics", params=params)


def opened() -> None:
    if "die" in BEHAVIOR:
        sys.exit(7)
    if "grow" in BEHAVIOR:
        held.append(bytearray(b"x" * (400 * 1024 * 1024)))
    if "flood" in BEHAVIOR:
        data = b'{"jsonrpc":"2.0","method":"window/logMessage","params":{"type":4,"message":"more"}}'
        frame = b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
        for _ in range(100):
            sys.stdout.buffer.write(frame * 1_000)


def main() -> None:
    if "garbage" in BEHAVIOR:
        print("Starting the server ...", flush=True)
    while (message := read()) is not None:
        method, id = message.get("method"), message.get("id")
        if "silent" in BEHAVIOR:
            continue
        if method == "initialize":
            capabilities = {"textDocumentSync": 1, "documentSymbolProvider": True}
            send(id=id, result={"capabilities": capabilities})
            if "deaf" in BEHAVIOR:
                time.sleep(600)  # it is ended by the test
        elif method in ("textDocument/didOpen", "textDocument/didChange"):
            document = message["params"]["textDocument"]
            text = document.get("text") or message["params"].get("contentChanges", [{"text": ""}])[0]["text"]
            if method == "textDocument/didOpen":
                opened()
            publish(document["uri"], document["version"], text)
        elif method == "exit":
            return
        elif id is not None and method is not None:
            send(id=id, result=None)
            for uri, errors in send_diagnostics_after_next_answer:
                send_diagnostics(uri, errors, None)
            send_diagnostics_after_next_answer.clear()


main()
