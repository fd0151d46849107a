"""What a file says about itself is read without its weights; and a file that lies is refused, never believed."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.models.embedded.gguf import KV_BYTES, LEAST_CONTEXT, MAX_CONTEXT, SLOTS, Gguf, NotGguf, describe_model, read
from tests.models.embedded import cache

QWEN: dict[str, Any] = {
    "general.architecture": "qwen2",
    "qwen2.context_length": 131_072,
    "qwen2.block_count": 28,
    "qwen2.embedding_length": 3584,
    "qwen2.attention.head_count": 28,
    "qwen2.attention.head_count_kv": 4,
    "tokenizer.ggml.tokens": ["a", "b", "é"],
    "tokenizer.chat_template": "{% if tools %}{{ tools }}{% endif %}{{ messages }}",
}


def encoded(fields: dict[str, Any]) -> bytes:
    """A head with these fields, and no weights."""
    return (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, len(fields))
        + b"".join(_string(name) + _typed(value) for name, value in fields.items())
    )


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: int | str | list[int] | list[str]) -> bytes:
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    items = [_string(each) if isinstance(each, str) else struct.pack("<I", each) for each in value]
    kind = 8 if isinstance(value[0], str) else 4
    return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)


def read_bytes(tmp_path: Path, content: bytes) -> Gguf:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return read(path)


def test_the_starter_says_what_it_is() -> None:
    gguf = read(cache.starter())
    assert (gguf.architecture, gguf.context_length, gguf.token_bytes) == ("llama", 8192, 30 * 3 * (64 + 64) * 2)
    assert gguf.has_template
    assert not gguf.has_tools


def test_a_template_with_tools_is_seen(tmp_path: Path) -> None:
    gguf = read_bytes(tmp_path, encoded(QWEN))
    assert gguf.has_tools
    assert gguf.token_bytes == 28 * 4 * (128 + 128) * 2


def test_layers_may_differ_in_their_heads(tmp_path: Path) -> None:
    fields = {**QWEN, "qwen2.attention.head_count_kv": [4, 0, 2], "qwen2.block_count": 3}
    assert read_bytes(tmp_path, encoded(fields)).token_bytes == 6 * (128 + 128) * 2


def test_a_larger_file_gets_tools_and_as_much_context_as_memory_allows() -> None:
    gguf = Gguf(
        size_bytes=5_000_000_000,
        architecture="qwen2",
        context_length=131_072,
        token_bytes=57_344,
        has_template=True,
        has_tools=True,
    )
    info = describe_model(gguf)
    assert info.tools
    assert not info.is_tiny
    assert info.max_output_tokens is None
    assert info.context_window is not None
    assert LEAST_CONTEXT <= info.context_window <= MAX_CONTEXT
    assert info.context_window * SLOTS * 57_344 <= max(KV_BYTES, LEAST_CONTEXT * SLOTS * 57_344)


def test_a_small_file_gets_no_tools_whatever_its_template_says(tmp_path: Path) -> None:
    info = describe_model(read_bytes(tmp_path, encoded(QWEN)))
    assert info.is_tiny
    assert not info.tools


@pytest.mark.parametrize("size", range(0, len(encoded(QWEN)), 7))
def test_a_head_cut_anywhere_is_refused(size: int, tmp_path: Path) -> None:
    with pytest.raises(NotGguf):
        read_bytes(tmp_path, encoded(QWEN)[:size])


@given(at=st.integers(0, len(encoded(QWEN)) - 1), junk=st.binary(min_size=1, max_size=16))
def test_junk_in_a_head_is_read_or_refused_and_nothing_else(
    at: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(encoded(QWEN))
    content[at : at + len(junk)] = junk
    with contextlib.suppress(NotGguf):
        read_bytes(tmp_path_factory.mktemp("junk"), bytes(content))
