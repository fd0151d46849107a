"""A peer that is small enough to know all about: it asks the model that it is told of, makes the calls that come back,
and prints the answer. With a FAULT it is a bad one: `wrong` answers something else, `failing` ends with 3, and `lazy`
makes no call."""

from __future__ import annotations

import http.client
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VERSION = "7.8.9"


def main(argv: list[str]) -> int:
    fault = os.environ["FAULT"]
    if argv in (["--version"], ["--help"]):
        print(f"stand-in {VERSION}: --version, --help, PROMPT")
        return 0
    if fault == "failing":
        print("I have no wheels", file=sys.stderr)
        return 3
    messages: list[dict[str, Any]] = [{"role": "user", "content": argv[0]}]
    while calls := (answer := ask(messages)).get("tool_calls"):
        messages.append(answer)
        for call in calls:
            path = json.loads(call["function"]["arguments"])["path"]
            found = "" if fault == "lazy" else Path(path).read_text()
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})
    print("something else" if fault == "wrong" else answer["content"])
    return 0


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    url = urlsplit(os.environ["MODEL_URL"])
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
    connection.request("POST", f"{url.path}/chat/completions", json.dumps({"model": "m", "messages": messages}))
    told = json.loads(connection.getresponse().read())
    connection.close()
    return told["choices"][0]["message"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
