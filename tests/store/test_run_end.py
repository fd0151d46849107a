"""Who has lost a run changes nothing of it any more, and what a prompt brought is stored once."""

from __future__ import annotations

from pathlib import Path

from kedge.protocol.messages import Text
from kedge.protocol.runs import Attachment
from kedge.store.port import Outcome
from tests.store.stores import opened
from tests.support.harness import Kedge


async def test_a_stop_that_comes_late_does_not_take_a_run_from_who_has_it_now(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        first = (await place.start("run-1")).claim
        await place.store.suspend(first)
        started = await place.store.start(first.workspace_id, first.session_id)
        assert started is not None
        message = await place.store.create_message(started.claim, "assistant")
        await place.store.suspend(first)
        await place.store.finish_parts(started.claim, message.id, 0, [Text("still here")])
        await place.store.finish(started.claim, Outcome("completed"))
        end = await place.store.run_end(first.workspace_id, "run-1")
        assert end is not None
        assert (end.text, end.error, end.cancelled) == ("still here", None, False)


async def test_attachments_are_stored_once_when_the_message_has_them(kedge: Kedge) -> None:
    size = 3_000_000
    session = await kedge.session()
    empty = await kedge.stored_bytes()
    for i in range(4):
        attached = Attachment(f"{i}.txt", "text/plain", (str(i) * size).encode())
        receipt = await kedge.send(session, "say read", attachments=(attached,))
        await kedge.end(receipt.run_id)
    assert await kedge.stored_bytes() - empty < 6 * size
