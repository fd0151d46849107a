"""The scripted model server outside the test's loop, in a thread or a process, and the hand that drives it there."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tests.support.model_server import HOST, LIMIT_S, ModelServer
from tests.support.model_wire import Json

STOP_S = 10.0


class ModelControl:
    """Drives a model server over HTTP. The fields of a plan are those of `model_plan.Plan`."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def stats(self) -> Json:
        return self._ask("GET", "stats")

    def wait(self, **wanted: Any) -> list[Json]:
        """The calls, once `calls=N` came, `done=N` ended, `gone=N` were left by the client, or one is `held=GATE`."""
        return self._ask("GET", f"wait?{urlencode(wanted)}")["calls"]

    def plan(self, **fields: Any) -> None:
        self._ask("POST", "plan", fields)

    def plan_next(self, *plans: Mapping[str, Any]) -> None:
        """A plan for each of the next calls; after them the usual one."""
        self._ask("POST", "plan", plans)

    def on(self, *plans: Mapping[str, Any], system: str = "", prompt: str = "", body: str = "") -> None:
        """Plans by the conversation: one for each step of a prompt. See `model_script.Rule`."""
        self._ask("POST", "on", {"plans": plans, "system": system, "prompt": prompt, "body": body})

    def titles(self, **fields: Any) -> None:
        """The plan for calls that are to name a session; they are counted apart (`title_calls` of the stats)."""
        self._ask("POST", "titles", fields)

    def accept_keys(self, *keys: str) -> None:
        """From here on nobody else is let in."""
        self._ask("POST", "door", {"accepted": keys})

    def enforce_window(self, tokens: int) -> None:
        """Refuse requests whose prompt and answer do not fit, as vLLM does, and count the tokens of prompts."""
        self._ask("POST", "window", {"tokens": tokens})

    def release(self, *gates: str) -> None:
        self._ask("POST", "release", {"gates": gates})

    def reset(self) -> None:
        self._ask("POST", "reset")

    def _ask(self, method: str, what: str, body: Mapping[str, Any] | Sequence[Any] | None = None) -> Json:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMIT_S + STOP_S)
        with contextlib.closing(connection):
            connection.request(method, f"/_fake/{what}", json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            told = answer.read()
            assert answer.status == 200, f"{what}: {answer.status} {told[:2000]!r}"
            return json.loads(told)


@contextlib.contextmanager
def model_thread(names: tuple[str, ...] = ("fake-model",)) -> Generator[ModelControl]:
    """A model server on a loop of its own, for tests that block theirs, or end it. It offers models of these names."""
    ready = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with ModelServer(models=names) as models:
            running.append((asyncio.get_running_loop(), stop, models.port))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(LIMIT_S), "the model server did not start"
    loop, stop, port = running[0]
    try:
        yield ModelControl(port)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_S)


@contextlib.contextmanager
def model_process(*options: str) -> Generator[tuple[ModelControl, subprocess.Popen[str]]]:
    """A model server in a process of its own, which a benchmark does not share its interpreter with."""
    command = [sys.executable, "-m", "tests.support.model_server", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ModelControl(int(process.stdout.readline())), process
        finally:
            process.terminate()
            process.wait(STOP_S)
