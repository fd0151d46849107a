"""Streams as Google's servers may send them, and ways to cut them, for hypothesis."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
REASONS = ("STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "PROHIBITED_CONTENT", "OTHER")
LETTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WORDS = (LETTERS | st.sampled_from(["😀🇩🇪", "a\u2028b\x85c\r\nd", "data: x\n\n", "\u00e9\ufeff"])).map("so {}".format)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
SIGNATURES = st.sampled_from(["", "c2ln", "c2lnbmVk", "c2lnbg==", "/+/+"])


@st.composite
def answer_parts(draw: st.DrawFn) -> Json:
    signature = draw(SIGNATURES)
    signed = {"thoughtSignature": signature} if signature else {}
    match draw(st.sampled_from(["text", "text", "thought", "call", "call", "empty", "unheard"])):
        case "text":
            return {"text": draw(WORDS), **signed}
        case "thought":
            return {"text": draw(WORDS), "thought": True, **signed}
        case "call":
            call: Json = {"name": draw(st.sampled_from(["view", "bash"]))}
            if draw(st.booleans()):
                call["args"] = draw(st.dictionaries(WORDS, VALUES, max_size=3))
            return {"functionCall": call, **signed}
        case "empty":
            return {"text": "", **signed}
        case _:
            return {"executableCode": {"language": "PYTHON", "code": "print()"}}


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Chunks of parts, each with what is counted so far, and at last a reason."""
    chunks: list[Json] = []
    counts: Json = {}
    for i, parts in enumerate(draw(st.lists(st.lists(answer_parts(), max_size=3), min_size=1, max_size=5))):
        for j, part in enumerate(parts):
            if "functionCall" in part:
                part["functionCall"]["id"] = f"call-{i}-{j}"
        prompt = draw(st.integers(1, 10**6))
        counts |= {"promptTokenCount": prompt, "cachedContentTokenCount": draw(st.integers(0, prompt))}
        for name in draw(st.sets(st.sampled_from(["candidatesTokenCount", "thoughtsTokenCount"]))):
            counts[name] = draw(st.integers(0, 10**6))
        candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
        chunks.append({"candidates": [candidate], "usageMetadata": dict(counts), "modelVersion": "m"})
    chunks[-1]["candidates"][0]["finishReason"] = draw(st.sampled_from(REASONS))
    end = draw(st.sampled_from(["\n\n", "\r\n\r\n"]))
    return "".join(f"data: {json.dumps(chunk)}{end}" for chunk in chunks).encode()


@st.composite
def cuts(draw: st.DrawFn, size: int) -> list[int]:
    return [0, *sorted(draw(st.sets(st.integers(0, size), max_size=8))), size]


def cut(stream: bytes, edges: list[int]) -> list[bytes]:
    return [stream[start:end] for start, end in pairwise(edges) if start < end]
