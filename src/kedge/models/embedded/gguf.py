"""What a GGUF file says about itself, read from its head: how long its context is, what a token of it costs, and
whether its template knows tools. The weights are not looked at."""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Any, cast

import msgspec

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_KEYS = 100_000  # a real file has dozens
_KEPT_ITEMS = 1_000  # of an array: one value a layer is of use, the vocabulary is not
_HALF_FLOAT_BYTES = 2  # the context is kept in these
_TOOLS = re.compile(r"\btools\b")


class NotGguf(Exception):
    """Why it cannot be one."""


class Gguf(msgspec.Struct, frozen=True, kw_only=True):
    size_bytes: int
    architecture: str
    context_length: int | None  # that it was trained for
    token_bytes: int | None  # of memory, for each token of context
    has_template: bool
    has_tools: bool


def read(path: Path) -> Gguf:
    """Takes as long as it takes to skip a vocabulary: a tenth of a second for a large one."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            if size_bytes < 24:
                raise NotGguf("it is too short")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                fields = _fields(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise NotGguf("it is cut off or damaged") from error
    return _understood(fields, size_bytes)


def _understood(fields: dict[str, Any], size_bytes: int) -> Gguf:
    architecture = str(fields.get("general.architecture", ""))

    def number(name: str) -> int | None:
        value = fields.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and value > 0 else None

    template = fields.get("tokenizer.chat_template")
    return Gguf(
        size_bytes=size_bytes,
        architecture=architecture,
        context_length=number("context_length"),
        token_bytes=_token_bytes(fields.get(f"{architecture}.attention.head_count_kv"), number),
        has_template=isinstance(template, str),
        has_tools=isinstance(template, str) and _TOOLS.search(template) is not None,
    )


def _token_bytes(heads_kv: Any, number: Any) -> int | None:
    """Keys and values of every layer. More than a model with a sliding window needs, never less."""
    layers, heads, width = number("block_count"), number("attention.head_count"), number("embedding_length")
    if layers is None or heads is None or width is None:
        return None
    if isinstance(heads_kv, list):
        all_heads = sum(each for each in cast("list[Any]", heads_kv) if isinstance(each, int))
    else:
        all_heads = layers * (heads_kv if isinstance(heads_kv, int) else heads)
    key = number("attention.key_length") or width // heads
    value = number("attention.value_length") or width // heads
    return all_heads * (key + value) * _HALF_FLOAT_BYTES


def _fields(data: mmap.mmap) -> dict[str, Any]:
    if data[:4] != _MAGIC:
        raise NotGguf("it is no GGUF file")
    version, _, count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise NotGguf(f"its version {version} is not known")
    if count > _MAX_KEYS:
        raise NotGguf("it is damaged")
    cursor = _Cursor(data, 24)
    return {cursor.string(): cursor.value(cursor.number("I")) for _ in range(count)}


class _Cursor:
    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self._at = at

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def string(self) -> str:
        return self._bytes().decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._bytes().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        if kind not in _SCALARS:
            raise NotGguf("it is damaged")
        return self.number(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS and count > _KEPT_ITEMS:
            self._skip(count * struct.calcsize(f"<{_SCALARS[kind]}"))
            return []
        if count > len(self._data):
            raise NotGguf("it is cut off or damaged")
        if kind == _STRING:
            for _ in range(count):
                self._skip(self.number("Q"))
            return []
        return [self.value(kind) for _ in range(count)]

    def _bytes(self) -> bytes:
        start = self._at + 8
        self._skip(self.number("Q"))
        return self._data[start : self._at]

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise NotGguf("it is cut off or damaged")
        self._at += size
