"""Decode the server-sent events of model streams, and the JSON and token counts in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from kedge.models.errors import Refused
from kedge.protocol.sse import SseParser

# Some servers send the whole answer as one event.
MAX_EVENT_BYTES = 64 * 1024 * 1024


T = TypeVar("T")


class SseEvent(NamedTuple):
    data: bytes
    name: str = ""


class EventTooLarge(Exception):
    pass


class SseReader:
    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._parser = SseParser()

    def feed(self, chunk: bytes) -> list[SseEvent]:
        events = [SseEvent(data, name) for _, data, name in self._parser.feed(chunk)]
        if self._parser.pending_bytes > self._max_bytes:
            raise EventTooLarge
        return events


def make_json_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return a decoder for the data of events, which raises `Refused` for malformed data."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_data(data: bytes) -> T:
        try:
            return decode(data)
        except msgspec.ValidationError as error:
            raise _malformed(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return decode_leniently(data)

    def decode_leniently(data: bytes) -> T:
        """Accept half a surrogate pair, which is valid JSON: the other half may be in the next event."""
        try:
            return msgspec.convert(json.loads(data.decode()), kind)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise _malformed(error) from error

    return decode_data


def _malformed(error: Exception) -> Refused:
    return Refused("bad_response", f"The model's answer is malformed: {error}")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def count(value: Any) -> int:
    """Return a token count, or 0 for an invalid one: a wrong count must not fail a good answer."""
    return value if is_count(value) else 0


def as_object(value: Any) -> dict[str, Any]:
    """Return a decoded JSON object, or an empty one if `value` is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
