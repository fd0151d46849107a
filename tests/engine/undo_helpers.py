"""What the tests of undo, redo and fork do again and again."""

from __future__ import annotations

from kedge.protocol.messages import text_of
from kedge.protocol.runs import RunEnd
from tests.support.harness import Kedge


async def do(kedge: Kedge, session_id: str, prompt: str) -> RunEnd:
    end = await kedge.end((await kedge.send(session_id, prompt)).run_id)
    assert end.error is None, end.error
    return end


async def said(kedge: Kedge, session_id: str) -> list[str]:
    return [text_of(m.parts) for m in await kedge.messages(session_id) if m.role == "user"]
