"""GGUF files: their header (context length, memory per token, support for tools), and the resources a model gets."""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path
from typing import Any, cast

import msgspec

from kedge.models.values import ModelInfo

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_FIELDS = 100_000  # a real file has dozens
_KEPT_ITEMS = 1_000  # of an array: enough for one value per layer, not for a vocabulary
_HALF_FLOAT_BYTES = 2  # of the context cache
_TOOLS = re.compile(r"\btools\b")

SLOTS = 2  # parallel answers; further requests wait
MAX_THREADS = 8  # more would only wait for memory
MAX_CONTEXT = 32_768  # tokens of a session; more is too slow on a laptop
LEAST_CONTEXT = 2_048  # less is not enough for a conversation
TINY_CONTEXT = 4_096
TINY_OUTPUT = 512  # tokens; longer answers repeat themselves
TINY_BYTES = 500_000_000  # smaller files have less than a billion parameters and cannot follow a long prompt
KV_BYTES = 2 << 30  # of memory for the contexts of all slots, at most a quarter of the machine
PROMPT_CACHE_MIB = 256  # for prompts of paused conversations


class NotGguf(Exception):
    """The message says why the file is not valid."""


class Gguf(msgspec.Struct, frozen=True, kw_only=True):
    size_bytes: int
    architecture: str
    context_length: int | None  # of the training
    token_bytes: int | None  # of memory for each token of context
    has_template: bool
    has_tools: bool


def read(path: Path) -> Gguf:
    """Read the header. Raises `NotGguf`. Skipping a large vocabulary takes a tenth of a second."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            if size_bytes < 24:
                raise NotGguf("it is too short")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                fields = _read_fields(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise NotGguf("it is cut off or damaged") from error
    return _interpret(fields, size_bytes)


def _interpret(fields: dict[str, Any], size_bytes: int) -> Gguf:
    architecture = str(fields.get("general.architecture", ""))

    def number(name: str) -> int | None:
        value = fields.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and value > 0 else None

    template = fields.get("tokenizer.chat_template")
    return Gguf(
        size_bytes=size_bytes,
        architecture=architecture,
        context_length=number("context_length"),
        token_bytes=_compute_token_bytes(fields.get(f"{architecture}.attention.head_count_kv"), number),
        has_template=isinstance(template, str),
        has_tools=isinstance(template, str) and _TOOLS.search(template) is not None,
    )


def _compute_token_bytes(heads_kv: Any, number: Any) -> int | None:
    """Return the size of keys and values of all layers: an upper bound, because of sliding windows."""
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


def _read_fields(data: mmap.mmap) -> dict[str, Any]:
    if data[:4] != _MAGIC:
        raise NotGguf("it is not a GGUF file")
    version, _, count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise NotGguf(f"its version {version} is not supported")
    if count > _MAX_FIELDS:
        raise NotGguf("it is damaged")
    reader = _Reader(data, 24)
    return {reader.read_string(): reader.read_value(reader.read_number("I")) for _ in range(count)}


class _Reader:
    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self._offset = offset

    def read_number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._offset)
        self._offset += struct.calcsize(f"<{form}")
        return value

    def read_string(self) -> str:
        return self._read_bytes().decode()

    def read_value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._read_bytes().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._read_array(self.read_number("I"), self.read_number("Q"))
        if kind not in _SCALARS:
            raise NotGguf("it is damaged")
        return self.read_number(_SCALARS[kind])

    def _read_array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS and count > _KEPT_ITEMS:
            self._skip(count * struct.calcsize(f"<{_SCALARS[kind]}"))
            return []
        if count > len(self._data):
            raise NotGguf("it is cut off or damaged")
        if kind == _STRING:
            for _ in range(count):
                self._skip(self.read_number("Q"))
            return []
        return [self.read_value(kind) for _ in range(count)]

    def _read_bytes(self) -> bytes:
        start = self._offset + 8
        self._skip(self.read_number("Q"))
        return self._data[start : self._offset]

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._offset:
            raise NotGguf("it is cut off or damaged")
        self._offset += size


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the child process. `context` is for each slot."""

    path: str
    socket: str = ""  # chosen when the process is started
    context: int
    slots: int = SLOTS
    threads: int = 1
    max_output: int = -1
    prompt_cache_mib: int = PROMPT_CACHE_MIB


def is_tiny(gguf: Gguf) -> bool:
    return gguf.size_bytes < TINY_BYTES


def choose_settings(gguf: Gguf, path: str = "") -> Settings:
    context = min(gguf.context_length or LEAST_CONTEXT, TINY_CONTEXT if is_tiny(gguf) else MAX_CONTEXT)
    if gguf.token_bytes:
        max_kv_bytes = min(KV_BYTES, _read_memory_bytes() // 4)
        context = min(context, max(LEAST_CONTEXT, max_kv_bytes // (SLOTS * gguf.token_bytes)))
    max_output = TINY_OUTPUT if is_tiny(gguf) else -1
    return Settings(path=path, context=context, threads=_count_threads(), max_output=max_output)


def describe_model(gguf: Gguf) -> ModelInfo:
    """Return the model's properties. Its price is zero."""
    chosen = choose_settings(gguf)
    return ModelInfo(
        context_window=chosen.context,
        max_output_tokens=chosen.max_output if chosen.max_output > 0 else None,
        input_price=0.0,
        output_price=0.0,
        cache_read_price=0.0,
        cache_write_price=0.0,
        images=False,
        tools=gguf.has_tools and not is_tiny(gguf),
        is_tiny=is_tiny(gguf),
    )


def _read_memory_bytes() -> int:
    """Return the memory of the machine, or of the container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def _count_threads() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # All threads wait for the slowest one. If every core is used, a thread that shares its core makes an answer ten
    # times slower (measured), so one core stays free for other processes.
    return max(1, min(cpus - 1, MAX_THREADS))
