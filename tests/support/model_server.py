"""A scripted model server for tests: every wire on a loopback port, with nothing but the standard library.

It plays plans (see `model_plan`; `model_script` says which) and remembers its calls. It lives on the test's own loop
(`ModelServer`), or in a thread or a process of its own (`model_control`), and is then driven by

    GET  /_fake/stats                          its calls, with their headers and bodies
    GET  /_fake/wait?calls=&done=&gone=&held=  the same, once so many calls came, ended, were left, or wait at a gate
    POST /_fake/plan      {field: value}       change the plan; a list of such: one plan for each next call
    POST /_fake/on        {plans, system, prompt, body}  plans by the conversation, see `model_script.Rule`
    POST /_fake/titles    {field: value}       change the plan for calls that are to name a session
    POST /_fake/door      {field: value}       whose keys are taken, see `model_door.Door`
    POST /_fake/window    {"tokens": number}   refuse requests that do not fit
    POST /_fake/release   {"gates": [name, …]} let calls pass
    POST /_fake/reset                          forget everything

`python -m tests.support.model_server --port 0` prints its port, and ends with its parent or after its lifetime.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from tests.support.model_anthropic import AnthropicWire
from tests.support.model_chat import ChatWire
from tests.support.model_door import Door
from tests.support.model_gemini import PATH as GEMINI_PATH
from tests.support.model_gemini import GeminiWire
from tests.support.model_gemini import listing as gemini_listing
from tests.support.model_plan import AT_ONCE, Plan
from tests.support.model_responses import ResponsesWire
from tests.support.model_script import Script, is_title
from tests.support.model_wire import Json, SentFrame, Wire, encoded
from tests.support.stream_server import Connection, Connections

HOST = "127.0.0.1"
LIMIT_S = 30.0  # of a wait; generous, because the machine may be busy
LIFETIME_S = 600.0  # of a process nobody ends
KEPT_CALLS = 5000
WIRES: dict[str, Wire] = {
    "/v1/chat/completions": ChatWire(),
    "/v1/responses": ResponsesWire(),
    "/v1/messages": AnthropicWire(),
}


@dataclasses.dataclass
class Call:
    """One call of a model. Times are those of the monotonic clock, which all processes of a machine share."""

    path: str
    headers: dict[str, str]
    body: Json
    peer: str  # the client's end of the connection
    arrived: float
    first: float | None = None
    last: float | None = None  # when the last byte of a whole answer is sent
    done: float | None = None
    deltas: int = 0
    held: str = ""  # the gate at which it waits
    is_gone: bool = False  # the client closed the connection before the end


class ModelServer(Script):
    """Use as `async with ModelServer(…) as models`: it lives on the loop of whoever enters."""

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        port: int = 0,
        models: tuple[str, ...] = ("fake-model",),
        kept_calls: int = KEPT_CALLS,
    ) -> None:
        super().__init__(plan or Plan())
        self.models = models
        self.port = port
        self.calls: deque[Call] = deque(maxlen=kept_calls)
        self.title_calls: deque[Call] = deque(maxlen=kept_calls)
        self.count = 0  # of the calls that name no session
        self.listings = 0
        self.door = Door()
        self.window: int | None = None  # of the model, in tokens; a request that does not fit is refused
        self.chars_per_token = 4.0
        self.refused_as_too_long = 0
        self.others: dict[str, Json] = {}  # answers at other paths
        self.expired_key = ""  # with this one nobody is told which models there are
        self.raw_bodies: list[bytes] | None = None  # of the calls, for a test that wants them
        self._gates: dict[str, asyncio.Event] = {}
        self._news = asyncio.Event()
        self._connections = Connections(self._serve)
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def __aenter__(self) -> ModelServer:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connections.accept, HOST, self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self._connections.close(self._server)

    # what a test does

    def release(self, gate: str) -> None:
        self._gate(gate).set()

    async def until(self, holds: Callable[[Sequence[Call]], bool], limit_s: float = LIMIT_S) -> None:
        """Until something holds of the calls."""
        async with asyncio.timeout(limit_s):
            while not holds(self.calls):
                await self._news.wait()

    def reset(self) -> None:
        super().__init__(Plan())
        self.count = self.listings = 0
        self.door = Door()
        self.window = None
        self.refused_as_too_long = 0
        self.calls.clear()
        self.title_calls.clear()
        self._gates.clear()

    # connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await _read_request(reader)) and await self._answer(request, writer):
            pass

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is not to be used again."""
        if said := self.door.answer(request.path, request.headers):
            return await _send_json(writer, *said)
        if wire := WIRES.get(request.path) or (GeminiWire() if GEMINI_PATH.fullmatch(request.path) else None):
            return await self._call(wire, request, writer)
        if request.path == "/v1/models":
            self.listings += 1
            if self.expired_key and request.headers.get("authorization") == f"Bearer {self.expired_key}":
                return await _send_json(writer, 401, {"error": {"message": "expired"}})
            kind = "type" if "anthropic-version" in request.headers else "object"
            data = [{"id": name, kind: "model", "owned_by": "tests"} for name in self.models]
            return await _send_json(writer, 200, {"object": "list", "data": data, "has_more": False})
        if request.path == "/v1beta/models":
            self.listings += 1
            return await _send_json(writer, 200, gemini_listing(self.models))
        if request.path in self.others:
            return await _send_json(writer, 200, self.others[request.path])
        if request.path.startswith("/_fake/"):
            try:
                return await _send_json(writer, 200, await self._control(request))
            except TimeoutError:
                return await _send_json(writer, 408, self._stats())
        return await _send_json(writer, 404, {"error": {"message": f"no {request.path} here"}})

    async def _control(self, request: _Request) -> Json:
        body: Any = json.loads(request.body or b"{}")
        match request.path.removeprefix("/_fake/"):
            case "plan" if isinstance(body, list):
                self.next_plans = [Plan().changed(fields) for fields in cast("list[Json]", body)]
            case "plan":
                self.plan = self.plan.changed(body)
                self.failures.clear()
            case "on":
                self.on(**body)
            case "door":
                self.door = Door(**body)
            case "titles":
                self.titles = self.titles.changed(body)
            case "window":
                self.window = body["tokens"]
            case "release":
                for gate in body["gates"]:
                    self.release(gate)
            case "reset":
                self.reset()
            case "wait":
                wanted = request.query
                await self.until(lambda calls: _are_there(calls, wanted), float(wanted.get("limit_s", LIMIT_S)))
            case _:
                pass
        return self._stats()

    def _stats(self) -> Json:
        calls = [dataclasses.asdict(call) for call in self.calls]
        titles = [dataclasses.asdict(call) for call in self.title_calls]
        return {
            "count": self.count,
            "listings": self.listings,
            "refused": self.door.refused,
            "refused_as_too_long": self.refused_as_too_long,
            "calls": calls,
            "title_calls": titles,
        }

    # calls

    async def _call(self, wire: Wire, request: _Request, writer: asyncio.StreamWriter) -> bool:
        peer = str(writer.get_extra_info("peername"))
        call = Call(request.path, request.headers, json.loads(request.body), peer, time.monotonic())
        if self.raw_bodies is not None:
            self.raw_bodies.append(request.body)
        if is_title(wire, call.body):
            self.title_calls.append(call)
        else:
            self.calls.append(call)
            self.count += 1
        self._tell()
        work = asyncio.create_task(self._play(wire, call, writer))
        connection = writer.transport.get_protocol()
        assert isinstance(connection, Connection)
        gone = asyncio.create_task(connection.gone.wait())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            call.is_gone = not work.done()
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.wait({work, gone})
            call.done = time.monotonic()
            self._tell()
        return not work.cancelled() and work.result()

    async def _play(self, wire: Wire, call: Call, writer: asyncio.StreamWriter) -> bool:
        prompt_chars = len(json.dumps([call.body.get("tools"), call.body["messages"]])) if self.window else 0
        prompt_tokens = int(prompt_chars / self.chars_per_token)
        if self.window and (problem := _exceeds(self.window, prompt_tokens, call.body)):
            self.refused_as_too_long += 1
            return await _send_json(writer, 400, {"object": "error", "message": problem, "type": "BadRequestError"})
        plan = self.plan_of(wire, call.body)
        if self.window:
            plan = dataclasses.replace(plan, input_tokens=prompt_tokens)
        named = GEMINI_PATH.fullmatch(call.path)
        call_id, model = f"call-{self.count}", named["model"] if named else str(call.body["model"])
        await asyncio.sleep(plan.first_ms / 1000)
        if not await self._place(plan, AT_ONCE, call):
            return False
        if plan.status:
            extra = {"Retry-After": plan.retry_after} if plan.retry_after else {}
            return await _send_json(writer, plan.status, wire.error(plan), extra)
        if plan.malformed == "html":
            return await _send(writer, 200, "text/html", b"<html>please log in</html>")
        if not (named["method"].startswith("stream") if named else call.body.get("stream")):
            return await _send_json(writer, 200, wire.whole(plan, model, call_id))
        await _write(writer, _head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}))
        if not await self._place(plan, 0, call):
            return False
        frames = wire.frames(plan, model, call_id)
        if plan.joined:
            frames = iter([SentFrame(b"".join(frame.data for frame in frames))])
        for frame in frames:
            if frame.is_delta and plan.delay_ms and call.deltas:
                await asyncio.sleep(plan.delay_ms / 1000)
            size = plan.split or len(frame.data)
            for start in range(0, len(frame.data), size):
                piece = frame.data[start : start + size]
                await _write(writer, b"%x\r\n%b\r\n" % (len(piece), piece))
            if frame.is_delta:
                call.first = call.first or time.monotonic()
                call.deltas += 1
                self._tell()
                if not await self._place(plan, call.deltas, call):
                    return False
        call.last = time.monotonic()
        await _write(writer, b"0\r\n\r\n")
        return True

    async def _place(self, plan: Plan, place: int, call: Call) -> bool:
        """Do what the plan wants at this place; False: the connection is to be cut."""
        if plan.gate and plan.gate_after == place:
            call.held = plan.gate
            self._tell()
            await self._gate(plan.gate).wait()
            call.held = ""
        if plan.hang_after == place:
            await asyncio.Event().wait()
        return plan.drop_after != place

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


@dataclasses.dataclass
class _Request:
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    first = await reader.readline()
    if not first:
        return None
    _, target, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    return _Request(url.path, dict(parse_qsl(url.query)), headers, body)


def _exceeds(window: int, prompt_tokens: int, body: Json) -> str | None:
    """What vLLM says of a request that does not fit; None: it fits."""
    answer_tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 1)
    if prompt_tokens + answer_tokens <= window:
        return None
    return (
        f"This model's maximum context length is {window} tokens. However, you requested"
        f" {prompt_tokens + answer_tokens} tokens ({prompt_tokens} in the messages, {answer_tokens} in the completion)."
        " Please reduce the length of the messages or completion."
    )


def _are_there(calls: Sequence[Call], wanted: Mapping[str, str]) -> bool:
    return (
        len(calls) >= int(wanted.get("calls", 0))
        and sum(call.done is not None for call in calls) >= int(wanted.get("done", 0))
        and sum(call.is_gone for call in calls) >= int(wanted.get("gone", 0))
        and ("held" not in wanted or any(call.held == wanted["held"] for call in calls))
    )


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Planned", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _send(
    writer: asyncio.StreamWriter, status: int, kind: str, body: bytes, extra: Mapping[str, str] | None = None
) -> bool:
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), **(extra or {})}
    await _write(writer, _head(status, headers) + body)
    return True


async def _send_json(
    writer: asyncio.StreamWriter, status: int, body: Json, extra: Mapping[str, str] | None = None
) -> bool:
    return await _send(writer, status, "application/json", encoded(body), extra)


async def serve(options: argparse.Namespace) -> None:
    plan = Plan().changed(json.loads(options.plan))
    parent, loop, over = os.getppid(), asyncio.get_running_loop(), asyncio.Event()
    end = loop.time() + options.lifetime_s

    def watch() -> None:
        if os.getppid() != parent or loop.time() >= end:
            over.set()
        loop.call_later(0.2, watch)

    async with ModelServer(plan, port=options.port, kept_calls=options.kept_calls) as models:
        watch()
        print(models.port, flush=True)
        await over.wait()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="A scripted model server for tests.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--plan", default="{}", help="fields of the plan, as JSON")
    parser.add_argument("--lifetime-s", type=float, default=LIFETIME_S)
    parser.add_argument("--kept-calls", type=int, default=KEPT_CALLS, help="how many calls it remembers")
    asyncio.run(serve(parser.parse_args(argv)))


if __name__ == "__main__":
    main(sys.argv[1:])
