"""Resources of an embedded model: context size, threads, parallel answers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kedge.models.embedded.gguf import Gguf
from kedge.models.values import ModelInfo

SLOTS = 2  # parallel answers; further requests wait
MAX_THREADS = 8  # more would only wait for memory
MAX_CONTEXT = 32_768  # tokens of a session; more is too slow on a laptop
LEAST_CONTEXT = 2_048  # less is not enough for a conversation
TINY_CONTEXT = 4_096
TINY_OUTPUT = 512  # tokens; longer answers repeat themselves
TINY_BYTES = 500_000_000  # smaller files have less than a billion parameters and cannot follow a long prompt
KV_BYTES = 2 << 30  # of memory for the contexts of all slots, at most a quarter of the machine
PROMPT_CACHE_MIB = 256  # for prompts of paused conversations


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the child process. `context` is for each slot."""

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


def choose_sizes(gguf: Gguf) -> Sizes:
    context = min(gguf.context_length or LEAST_CONTEXT, TINY_CONTEXT if is_tiny(gguf) else MAX_CONTEXT)
    if gguf.token_bytes:
        context = min(context, max(LEAST_CONTEXT, _max_kv_bytes() // (SLOTS * gguf.token_bytes)))
    return Sizes(context=context, threads=_count_threads(), max_output=TINY_OUTPUT if is_tiny(gguf) else -1)


def describe(gguf: Gguf) -> ModelInfo:
    """Return the model's properties. Its price is zero."""
    chosen = choose_sizes(gguf)
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


def _max_kv_bytes() -> int:
    return min(KV_BYTES, _read_memory_bytes() // 4)


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
