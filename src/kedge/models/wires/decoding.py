"""Decode the server-sent events of model streams, and the JSON and token counts in them; the base of all streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from kedge.models.errors import Refused
from kedge.models.values import Delta, Endpoint, StepRequest, StreamEnd
from kedge.models.wires.history import StepIds
from kedge.protocol.sse import SseParser

# Some servers send the whole answer as one event.
MAX_EVENT_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


class SseEvent(NamedTuple):
    data: bytes
    name: str = ""


class SseReader:
    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._parser = SseParser()

    def feed(self, chunk: bytes) -> list[SseEvent]:
        events = [SseEvent(data, name) for _, data, name in self._parser.feed(chunk)]
        if self._parser.pending_bytes > self._max_bytes:
            raise Refused("bad_response", "The model's answer is malformed: an endless event")
        return events


class AnswerStream:
    """Decodes the events of one answer. Each wire implements `_parse_data`."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """Return the deltas of an event. Raises the `ModelError` that it reports, or `Refused` if it is malformed."""
        data = event.data.strip()
        # The end of a stream of Chat Completions; servers that support it send it on other wires, too.
        return self._end_stream() if data == b"[DONE]" else self._parse_data(data, event.name)

    def _parse_data(self, data: bytes, event_name: str) -> list[Delta]:
        raise NotImplementedError

    def _end_stream(self) -> list[Delta]:
        return [StreamEnd()]


def make_json_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return a decoder for the data of events, which raises `Refused` for malformed data."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_data(data: bytes) -> T:
        try:
            return decode(data)
        except msgspec.ValidationError as error:
            raise _make_error(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return decode_leniently(data)

    def decode_leniently(data: bytes) -> T:
        """Accept half a surrogate pair, which is valid JSON: the other half may be in the next event."""
        try:
            return msgspec.convert(json.loads(data.decode()), kind)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise _make_error(error) from error

    return decode_data


def convert(value: Any, kind: type[T]) -> T:
    """Convert a decoded value. Raises `Refused` if it is malformed."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _make_error(error) from error


def _make_error(error: Exception) -> Refused:
    return Refused("bad_response", f"The model's answer is malformed: {error}")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def count(value: Any) -> int:
    """Return a token count, or 0 for an invalid one: a wrong count must not fail a good answer."""
    return value if is_count(value) else 0


def as_object(value: Any) -> dict[str, Any]:
    """Return a decoded JSON object, or an empty one if `value` is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
