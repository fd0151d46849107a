"""A model that speaks OpenAI's Responses wire, as much of it as codex needs for one tool round: it reads hello.txt,
then it answers. For comparisons only; on loopback, and it ends with its parent's pipe."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

ANSWER = "FAKE-ANSWER-OK"
MAX_BODY = 64 * 1024 * 1024
Json = dict[str, Any]


def events(request: Json) -> Iterator[Json]:
    """What the model says: a call while there is no result in the conversation, then the answer."""
    is_answered = any(item.get("type") == "function_call_output" for item in request["input"])
    item = message() if is_answered else call(request["tools"])
    yield {"type": "response.created", "response": response("in_progress", [])}
    if item["type"] == "message":
        opening: Json = {**item, "status": "in_progress", "content": []}
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield {"type": "response.output_item.added", "output_index": 0, "item": opening}
        yield {"type": "response.output_text.delta", **place, "delta": ANSWER}
    else:
        opening: Json = {**item, "status": "in_progress", "arguments": ""}
        yield {"type": "response.output_item.added", "output_index": 0, "item": opening}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": response("completed", [item])}


def message() -> Json:
    content: list[Json] = [{"type": "output_text", "text": ANSWER, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def call(tools: list[Json]) -> Json:
    """The shell, whatever it is called there and however it takes its command."""
    shells = [tool for tool in tools if tool.get("name") in ("exec_command", "shell", "shell_command")]
    fields: Json = shells[0]["parameters"]["properties"]
    name = "cmd" if "cmd" in fields else "command"
    command = ["cat", "hello.txt"] if fields[name].get("type") == "array" else "cat hello.txt"
    head = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "status": "completed"}
    return {**head, "name": shells[0]["name"], "arguments": json.dumps({name: command})}


def response(status: str, output: list[Json]) -> Json:
    usage = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "fake", "status": status}
    return {**head, "output": output, "usage": usage if output else None}


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    lengths = [line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")]
    body = await reader.readexactly(min(MAX_BODY, int(lengths[0]))) if lengths else b""
    if head.startswith("post ") and "/responses " in head:
        told = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events(json.loads(body))]
        answer("200 OK", "text/event-stream", "".join(told).encode(), writer)
    else:
        answer("404 Not Found", "application/json", b'{"error": {"message": "no such thing here"}}', writer)
    await writer.drain()
    writer.close()


def answer(status: str, kind: str, body: bytes, writer: asyncio.StreamWriter) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)


async def main() -> None:
    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
