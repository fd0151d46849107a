"""The events of a model's stream, none of them larger than an answer can be, and the JSON that they carry."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from kedge.models.errors import Refused
from kedge.protocol.sse import SseParser

# A whole answer may come as one event; what is larger is no answer.
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


def json_reader(kind: type[T]) -> Callable[[bytes], T]:
    """Reads an event's data, or says that it is malformed."""
    decode = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> T:
        try:
            return decode(data)
        except msgspec.ValidationError as error:
            raise _malformed(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return read_leniently(data)

    def read_leniently(data: bytes) -> T:
        """Half a surrogate pair is valid JSON; its other half may be in the next event, and the writer joins them."""
        try:
            return msgspec.convert(json.loads(data.decode()), kind)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise _malformed(error) from error

    return read


def _malformed(error: Exception) -> Refused:
    return Refused("bad_response", f"the model's answer is malformed: {error}")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def count(value: Any) -> int:
    """The count, or 0 for what is none."""
    return value if is_count(value) else 0


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of an object, or none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
