"""The way to a model: requests go out, deltas come in as they arrive, and every fault is a `ModelError`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

import msgspec

from kedge.models import catalog
from kedge.models.errors import ConfigError, Forgotten, ModelError, Refused, Transient
from kedge.models.providers import NO_SETTINGS
from kedge.models.proxy import ANY_WAY, Way
from kedge.models.rejected_reasoning import StaleThoughts
from kedge.models.values import (
    Delta,
    Endpoint,
    HttpRequest,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    env_prefix,
)
from kedge.models.wires.decoding import EventTooLarge, SseReader
from kedge.models.wires.encoded_cache import Said
from kedge.models.wires.provider_errors import fault_of_answer
from kedge.models.wires.registry import WIRES, Stream, Wire
from kedge.models.wires.requests import writers

if TYPE_CHECKING:
    from kedge.models.transport import Answer, Local, Transport

CONNECT_S = 15.0  # a network that takes longer is down
STALL_S = 300.0  # reasoning models are silent for minutes; one that is for longer has gone
REST_S = 5.0  # after the model said why it stopped, for the usage and the end of the stream; for what an error says
DRAIN_S = 0.1  # after the end of the stream: for that of the connection's message, so that it can be used again
LISTING_S = 60.0  # how long a server's first model is taken to stay the same
MAX_PAGES = 20  # of a list of models; one that has more goes round in circles
MAX_ERROR_BYTES = 256 * 1024
MAX_TOLD_BYTES = 16 * 1024 * 1024  # of a list of models: a gateway describes hundreds, with a thousand words each
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # on the wire, where a token is a few hundred bytes

_CONTENT = (TextDelta, ReasoningDelta, ToolCallDelta)


class Models:
    def __init__(
        self,
        *,
        connect_s: float = CONNECT_S,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
        local: Local | None = None,
    ) -> None:
        self._local = local
        self._connect_s = connect_s
        self._stall_s = stall_s
        self._clock = clock
        self._time_of_day = time_of_day
        self._opening: asyncio.Future[Transport] | None = None
        self._said = Said()
        self._stale = StaleThoughts()
        self._listings: dict[bytes, tuple[float, str]] = {}  # by what the server is asked with

    async def warm_up(self, way: Way = ANY_WAY) -> None:
        """Load the HTTP client ahead of the first call, in a thread: it takes a tenth of a second."""
        with contextlib.suppress(ModelError):  # the first call tells
            await (await self._transport()).warm_up(way)

    async def named(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint with its model: where none was chosen, the first one that the server offers."""
        if endpoint.model:
            return endpoint
        now = self._clock()
        self._listings = {key: value for key, value in self._listings.items() if now - value[0] < LISTING_S}
        asked = msgspec.json.encode(_wire(endpoint).prepare_listing(endpoint))
        if asked not in self._listings:
            self._listings[asked] = (now, await self._first_model(endpoint))
        model = self._listings[asked][1]
        # Nobody configured anything for a model that nobody named; what all know of it holds.
        return msgspec.structs.replace(endpoint, model=model, info=catalog.info(model, NO_SETTINGS, endpoint.provider))

    async def stream(self, endpoint: Endpoint, request: StepRequest) -> AsyncGenerator[list[Delta], None]:
        """One step's deltas, in the groups in which they arrive. It ends when the model ended the step, or raises.

        Close it (`contextlib.aclosing`) when leaving early: that closes the connection.
        """
        has_begun = False
        try:
            async with contextlib.aclosing(self._attempt(endpoint, self._stale.without(request))) as groups:
                async for deltas in groups:
                    has_begun = True
                    yield deltas
            return
        except Forgotten:
            if has_begun or not self._stale.add(request):
                raise
        async with contextlib.aclosing(self._attempt(endpoint, self._stale.without(request))) as groups:
            async for deltas in groups:
                yield deltas

    async def _attempt(self, endpoint: Endpoint, request: StepRequest) -> AsyncGenerator[list[Delta], None]:
        wire = _wire(endpoint)
        async with self._send(endpoint, wire.prepare_request(endpoint, request, self._said)) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind in ("text/html", "application/json"):
                setting = endpoint.url_variable or f"{env_prefix(endpoint.provider)}_BASE_URL"
                problem = f"{endpoint.host} answered with {kind}, not with a stream; check {setting}"
                raise Refused("bad_response", problem)
            body = _Body(answer, wire.stream(endpoint, request), self._stall_s, self._clock)
            async with contextlib.aclosing(body), contextlib.aclosing(body.groups()) as groups:
                async for deltas in groups:
                    yield deltas
                if rest := await body.rest():
                    yield rest

    async def close(self) -> None:
        if self._opening is not None:
            with contextlib.suppress(ModelError):
                await (await self._opening).close()

    async def offered(self, endpoint: Endpoint) -> list[str]:
        """The models that the server has, in its order. Bound the time: it may be silent."""
        wire = _wire(endpoint)
        names: list[str] = []
        asked: HttpRequest | None = wire.prepare_listing(endpoint)
        for _ in range(MAX_PAGES):
            told = await self.ask(endpoint, asked)
            names += wire.parse_listing(told)
            asked = wire.next_listing(asked, told)
            if asked is None:
                break
        return names

    async def ask(self, endpoint: Endpoint, request: HttpRequest) -> bytes:
        """What the server says to one request."""
        async with self._send(endpoint, request) as answer:
            return b"".join([chunk async for chunk in _beginning(answer, MAX_TOLD_BYTES)])

    async def _first_model(self, endpoint: Endpoint) -> str:
        names = writers(await self.offered(endpoint))
        if not names:
            raise ConfigError("no_model", f"{endpoint.host} offers no model; name one with -m or KEDGE_MODEL")
        return names[0]

    @contextlib.asynccontextmanager
    async def _send(self, endpoint: Endpoint, request: HttpRequest) -> AsyncGenerator[Answer, None]:
        """The answer, if it is a good one."""
        transport = await self._transport()
        async with transport.send(request, endpoint.way) as answer:
            if answer.status != 200:
                body = await _error_body(answer)
                raise fault_of_answer(endpoint, answer.status, answer.headers, body, self._time_of_day())
            yield answer

    async def _transport(self) -> Transport:
        if self._opening is None:
            loop = asyncio.get_running_loop()
            self._opening = loop.run_in_executor(None, _open_transport, self._connect_s, self._stall_s, self._local)
        return await asyncio.shield(self._opening)


class _Body:
    """The stream of one answer."""

    def __init__(self, answer: Answer, stream: Stream, stall_s: float, clock: Callable[[], float]) -> None:
        self._chunks = answer.chunks()
        self._stream = stream
        self._reader = SseReader()
        self._stall_s = stall_s
        self._clock = clock
        self._size = 0
        self._is_over = False  # the server said that nothing more comes
        self._fault: ModelError | None = None  # what came before it in the same chunk goes first

    async def groups(self) -> AsyncGenerator[list[Delta], None]:
        """Deltas up to the one that ends the step."""
        heard_at = self._clock()
        has_deltas = False
        async for chunk in self._chunks:
            deltas = self._deltas(chunk)
            if not deltas and self._fault is None:
                if self._clock() - heard_at > self._stall_s:  # kept alive by comments, and yet silent
                    raise Transient("stalled", f"the model said nothing for {self._stall_s:g} s")
                continue
            heard_at = self._clock()
            if deltas:
                yield deltas
            has_deltas = has_deltas or any(isinstance(delta, _CONTENT) for delta in deltas)
            if any(isinstance(delta, StepEnd) for delta in deltas) or (self._is_over and has_deltas):
                return
            if self._fault is not None:
                raise self._fault
            if self._is_over:
                break
        raise Transient("dropped", "the stream ended before the answer did")

    async def rest(self) -> list[Delta]:
        """What comes after the step's end, its usage mostly. The answer is whole: nothing here can spoil it."""
        loop = asyncio.get_running_loop()
        deltas: list[Delta] = []
        try:
            async with asyncio.timeout(DRAIN_S if self._is_over else REST_S) as limit:
                async for chunk in self._chunks:
                    deltas += self._deltas(chunk)
                    if self._fault is not None:
                        break
                    if self._is_over:
                        limit.reschedule(loop.time() + DRAIN_S)
        except (TimeoutError, ModelError):
            pass
        return deltas

    async def aclose(self) -> None:
        await self._chunks.aclose()

    def _deltas(self, chunk: bytes) -> list[Delta]:
        self._size += len(chunk)
        if self._size > MAX_ANSWER_BYTES:
            raise Refused("bad_response", f"the answer is over {MAX_ANSWER_BYTES >> 20} MiB")
        try:
            events = self._reader.feed(chunk)
        except EventTooLarge as error:
            raise Refused("bad_response", "the model's answer is malformed: an event without end") from error
        deltas: list[Delta] = []
        try:
            for event in events:
                deltas += self._stream.parse_event(event)
        except ModelError as fault:
            self._fault = fault
        self._is_over = self._is_over or any(isinstance(delta, StreamEnd) for delta in deltas)
        return deltas


def _wire(endpoint: Endpoint) -> Wire:
    if not endpoint.extension:
        return WIRES[endpoint.wire]
    from kedge.models import extensions  # for the few that have one

    return extensions.wire(endpoint.extension)


def _open_transport(connect_s: float, stall_s: float, local: Local | None) -> Transport:
    from kedge.models.transport import Transport

    return Transport(connect_s, stall_s, local)


async def _error_body(answer: Answer) -> bytes:
    """What came of it in time: the status says enough, so that a body without end, or half of one, spoils nothing."""
    body = bytearray()
    with contextlib.suppress(TimeoutError, ModelError):
        async with asyncio.timeout(REST_S), contextlib.aclosing(_beginning(answer, MAX_ERROR_BYTES)) as chunks:
            async for chunk in chunks:
                body += chunk
    return bytes(body)


async def _beginning(answer: Answer, most_bytes: int) -> AsyncGenerator[bytes, None]:
    """As much of a body as matters."""
    size = 0
    async with contextlib.aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            yield chunk
            size += len(chunk)
            if size > most_bytes:
                break
