"""The client for model APIs: sends requests and yields deltas as they arrive. Every failure is a `ModelError`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from kedge.models import values
from kedge.models.errors import ConfigError, ModelError, ReasoningRejected, Refused, Transient
from kedge.models.providers import NO_SETTINGS, find_model_info
from kedge.models.server_windows import ServerWindows
from kedge.models.transport import LocalSockets, Response, Transport
from kedge.models.values import MAX_SILENCE_S, Delta, Endpoint, HttpRequest, StepRequest, env_prefix
from kedge.models.wires.decoding import SseReader
from kedge.models.wires.provider_errors import error_from_response
from kedge.models.wires.registry import WIRES, Stream, Wire
from kedge.models.wires.requests import EncodedCache, exclude_embeddings
from kedge.protocol.messages import Message, Reasoning

CONNECT_S = 15.0  # if it takes longer, the network is down
# With nothing but comments and pings, by which gateways keep the connection of a model that thinks.
MAX_PINGS_S = 1800.0
REST_S = 5.0  # for the usage after the step's end, and for the body of an error response
DRAIN_S = 0.1  # after the stream's end, for the end of the HTTP body: only then the connection can be reused
LISTING_S = 60.0  # how long the first model of a server is cached
MAX_PAGES = 20  # of a list of models; more would be an endless loop
MAX_ERROR_BYTES = 256 * 1024
MAX_REJECTED_SESSIONS = 1000  # one that is evicted is rejected once more, and then known again
MAX_LISTING_BYTES = 16 * 1024 * 1024  # gateways describe hundreds of models at length
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # of a stream, where a token takes a few hundred bytes

_CONTENT = (values.TextDelta, values.ReasoningDelta, values.ToolCallDelta)


class ModelClient:
    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        local: LocalSockets | None = None,
    ) -> None:
        self._clock = clock
        self._transport = Transport(CONNECT_S, MAX_SILENCE_S, local)
        self._encoded = EncodedCache()
        self._rejected = RejectedReasoning()
        self._listings: dict[bytes, tuple[float, str]] = {}  # first models, by the encoded listing request
        self._windows = ServerWindows(self.fetch, clock)

    async def warm_up(self, endpoint: Endpoint) -> None:
        """Load the certificates for an endpoint ahead of a call that is timed."""
        with contextlib.suppress(ModelError):  # the call will report it
            await self._transport.warm_up(endpoint.base_url, endpoint.connection)

    async def resolve_model(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint with a model: if it has none, the first one that the server lists."""
        if endpoint.model:
            return endpoint
        now = self._clock()
        self._listings = {key: entry for key, entry in self._listings.items() if now - entry[0] < LISTING_S}
        key = msgspec.json.encode(_find_wire(endpoint).prepare_listing(endpoint))
        if key not in self._listings:
            names = exclude_embeddings(await self.list_models(endpoint))
            if not names:
                raise ConfigError("no_model", f"{endpoint.host} lists no model; name one with -m or KEDGE_MODEL")
            self._listings[key] = (now, names[0])
        model = self._listings[key][1]
        return msgspec.structs.replace(
            endpoint, model=model, info=find_model_info(model, NO_SETTINGS, endpoint.provider)
        )

    async def add_window(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint with the context window that a server of the user's own tells, if it was unknown."""
        return await self._windows.add_to(endpoint)

    async def stream(self, endpoint: Endpoint, request: StepRequest) -> AsyncGenerator[list[Delta], None]:
        """Yield one step's deltas, grouped as they arrive, until the step is complete. Raises `ModelError`.

        Use `contextlib.aclosing`: it closes the connection when the step is abandoned.
        """
        has_started = False
        try:
            async with contextlib.aclosing(self._attempt(endpoint, self._rejected.remove_from(request))) as groups:
                async for deltas in groups:
                    has_started = True
                    yield deltas
            return
        except ReasoningRejected:
            if has_started or not self._rejected.add(request):
                raise
        async with contextlib.aclosing(self._attempt(endpoint, self._rejected.remove_from(request))) as groups:
            async for deltas in groups:
                yield deltas

    async def _attempt(self, endpoint: Endpoint, request: StepRequest) -> AsyncGenerator[list[Delta], None]:
        wire = _find_wire(endpoint)
        silence_s = endpoint.silence_s
        async with self._send(endpoint, wire.prepare_request(endpoint, request, self._encoded), silence_s) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind in ("text/html", "application/json"):
                setting = endpoint.url_variable or f"{env_prefix(endpoint.provider)}_BASE_URL"
                problem = f"{endpoint.host} answered with {kind} instead of a stream; check {setting}"
                raise Refused("bad_response", problem)
            reader = _StreamReader(response, wire.stream(endpoint, request), max(silence_s, MAX_PINGS_S), self._clock)
            async with contextlib.aclosing(reader), contextlib.aclosing(reader.read_step()) as groups:
                async for deltas in groups:
                    yield deltas
                if rest := await reader.read_rest():
                    yield rest

    async def close(self) -> None:
        self._transport.close()

    async def list_models(self, endpoint: Endpoint) -> list[str]:
        """Return the models that the server lists, in its order. Use a timeout: the server may be silent."""
        wire = _find_wire(endpoint)
        names: list[str] = []
        request: HttpRequest | None = wire.prepare_listing(endpoint)
        for _ in range(MAX_PAGES):
            page = await self.fetch(endpoint, request)
            names += wire.parse_listing(page)
            request = wire.next_listing(request, page)
            if request is None:
                break
        return names

    async def fetch(self, endpoint: Endpoint, request: HttpRequest) -> bytes:
        """Return the body of the response to one request."""
        async with self._send(endpoint, request) as response:
            return b"".join([chunk async for chunk in _read_up_to(response, MAX_LISTING_BYTES)])

    @contextlib.asynccontextmanager
    async def _send(
        self, endpoint: Endpoint, request: HttpRequest, stall_s: float = MAX_SILENCE_S
    ) -> AsyncGenerator[Response, None]:
        """Send the request; raise `ModelError` for an error status."""
        async with self._transport.send(request, endpoint.connection, stall_s) as response:
            if response.status != 200:
                body = await _read_error_body(response)
                raise error_from_response(endpoint, response.status, response.headers, body, time.time())
            yield response


class _StreamReader:
    """Reads the stream of one response."""

    def __init__(self, response: Response, stream: Stream, max_pings_s: float, clock: Callable[[], float]) -> None:
        self._chunks = response.chunks()
        self._stream = stream
        self._events = SseReader()
        self._max_pings_s = max_pings_s
        self._clock = clock
        self._size = 0
        self._is_over = False  # the server announced the end
        self._error: ModelError | None = None  # raised after the deltas before it in the same chunk

    async def read_step(self) -> AsyncGenerator[list[Delta], None]:
        """Yield deltas up to the one that ends the step."""
        last_delta_at = self._clock()
        has_deltas = False
        async for chunk in self._chunks:
            deltas = self._decode(chunk)
            if not deltas and self._error is None:
                if self._clock() - last_delta_at > self._max_pings_s:
                    raise Transient("stalled", f"The model sent nothing but pings for {self._max_pings_s:g} s")
                continue
            last_delta_at = self._clock()
            if deltas:
                yield deltas
            has_deltas = has_deltas or any(isinstance(delta, _CONTENT) for delta in deltas)
            if any(isinstance(delta, values.StepEnd) for delta in deltas) or (self._is_over and has_deltas):
                return
            if self._error is not None:
                raise self._error
            if self._is_over:
                break
        raise Transient("dropped", "The stream ended before the answer was complete")

    async def read_rest(self) -> list[Delta]:
        """Return the deltas after the step's end, mostly usage. Errors are ignored: the answer is complete."""
        loop = asyncio.get_running_loop()
        deltas: list[Delta] = []
        try:
            async with asyncio.timeout(DRAIN_S if self._is_over else REST_S) as limit:
                async for chunk in self._chunks:
                    deltas += self._decode(chunk)
                    if self._error is not None:
                        break
                    if self._is_over:
                        limit.reschedule(loop.time() + DRAIN_S)
        except (TimeoutError, ModelError):
            pass
        return deltas

    async def aclose(self) -> None:
        await self._chunks.aclose()

    def _decode(self, chunk: bytes) -> list[Delta]:
        self._size += len(chunk)
        if self._size > MAX_ANSWER_BYTES:
            raise Refused("bad_response", f"The answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        events = self._events.feed(chunk)
        deltas: list[Delta] = []
        try:
            for event in events:
                deltas += self._stream.parse_event(event)
        except ModelError as error:
            self._error = error
        self._is_over = self._is_over or any(isinstance(delta, values.StreamEnd) for delta in deltas)
        return deltas


def _find_wire(endpoint: Endpoint) -> Wire:
    if not endpoint.extension:
        return WIRES[endpoint.wire]
    from kedge.models.provider_registry import make_wire  # late: few endpoints need it

    return make_wire(endpoint.extension)


async def _read_error_body(response: Response) -> bytes:
    """Return as much as arrives in time: the status alone is enough, so an endless or broken body does no harm."""
    body = bytearray()
    with contextlib.suppress(TimeoutError, ModelError):
        async with asyncio.timeout(REST_S), contextlib.aclosing(_read_up_to(response, MAX_ERROR_BYTES)) as chunks:
            async for chunk in chunks:
                body += chunk
    return bytes(body)


async def _read_up_to(response: Response, max_bytes: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async with contextlib.aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            yield chunk
            size += len(chunk)
            if size > max_bytes:
                break


class RejectedReasoning:
    """Reasoning that the provider rejected (of another account, or of an expired key), omitted from later requests.

    Without this the session could not continue. The rest of the conversation stays.
    """

    def __init__(self) -> None:
        self._messages: dict[str, set[str]] = {}  # by session: ids of messages whose reasoning was rejected

    def add(self, request: StepRequest) -> bool:
        """Record that the request's reasoning was rejected. Returns False if it has none: something else is wrong."""
        history = self.remove_from(request).history
        rejected = {message.id for message in history if any(isinstance(part, Reasoning) for part in message.parts)}
        if not rejected:
            return False
        session_id = request.history[0].session_id
        known = self._messages.pop(session_id, set[str]())
        self._messages[session_id] = known | rejected
        if len(self._messages) > MAX_REJECTED_SESSIONS:
            del self._messages[next(iter(self._messages))]
        return True

    def remove_from(self, request: StepRequest) -> StepRequest:
        known = self._messages.get(request.history[0].session_id) if request.history else None
        if not known:
            return request
        history = [_without_reasoning(message) if message.id in known else message for message in request.history]
        return msgspec.structs.replace(request, history=history)


def _without_reasoning(message: Message) -> Message:
    parts = [part for part in message.parts if not isinstance(part, Reasoning)]
    return msgspec.structs.replace(message, parts=parts)
