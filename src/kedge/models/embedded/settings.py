"""How much a local model may take of the machine: memory for its context, threads, sessions at once."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kedge.models.embedded.gguf import Gguf
from kedge.models.values import ModelInfo

SLOTS = 2  # answers written at once; what comes on top waits its turn
MAX_THREADS = 8  # more wait for memory, not for each other
MAX_CONTEXT = 32_768  # tokens of a session: beyond it a laptop is too slow to be of use
LEAST_CONTEXT = 2_048  # below it no conversation fits
TINY_CONTEXT = 4_096
TINY_OUTPUT = 512  # tokens: what is longer goes round in circles
TINY_BYTES = 500_000_000  # a smaller file holds a model of less than a billion parameters, lost in a long prompt
KV_BYTES = 2 << 30  # of memory for the contexts of all slots, or a quarter of what the machine has
PROMPT_CACHE_MIB = 256  # of conversations that may come back


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told. `context` is for each slot."""

    path: str
    socket: str
    context: int
    slots: int = SLOTS
    threads: int = 1
    max_output: int = -1
    prompt_cache_mib: int = PROMPT_CACHE_MIB


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    context: int
    threads: int
    max_output: int


def is_tiny(gguf: Gguf) -> bool:
    return gguf.size_bytes < TINY_BYTES


def sizes(gguf: Gguf) -> Sizes:
    most = min(gguf.context_length or LEAST_CONTEXT, TINY_CONTEXT if is_tiny(gguf) else MAX_CONTEXT)
    if gguf.token_bytes:
        most = min(most, max(LEAST_CONTEXT, _kv_bytes() // (SLOTS * gguf.token_bytes)))
    return Sizes(context=most, threads=_threads(), max_output=TINY_OUTPUT if is_tiny(gguf) else -1)


def info(gguf: Gguf) -> ModelInfo:
    """What the agent may expect of it. It costs nothing."""
    fitting = sizes(gguf)
    return ModelInfo(
        context_window=fitting.context,
        max_output_tokens=fitting.max_output if fitting.max_output > 0 else None,
        input_price=0.0,
        output_price=0.0,
        cache_read_price=0.0,
        cache_write_price=0.0,
        images=False,
        tools=gguf.has_tools and not is_tiny(gguf),
        is_tiny=is_tiny(gguf),
    )


def _kv_bytes() -> int:
    return min(KV_BYTES, _memory_bytes() // 4)


def _memory_bytes() -> int:
    """Of the machine, or of the container that we are in."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return found


def _threads() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # All threads wait for the slowest. Where every core is taken, one that has to share its core makes an answer take
    # ten times as long: measured, so one core is left to everybody else.
    return max(1, min(cpus - 1, MAX_THREADS))
