"""A stream that comes back without what was missed (P10): the run and its messages are read again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from kedge.client import AsyncClient, Client
from kedge.client.run_follower import PAGE
from tests.client.relay import Relay
from tests.server.process import Place, Server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def relay(server: Server, place: Place) -> Generator[Relay]:
    with Relay(place.runtime_dir / "relay.sock", server.unix.path) as relay:
        yield relay


@pytest.fixture
def direct(server: Server, tmp_path: Path) -> Generator[Client]:
    """A client that misses nothing."""
    with Client.connect(str(tmp_path), host=str(server.unix)) as client:
        yield client


class Missed:
    """A run of which a follower misses the middle, in a session of more than one page of messages."""

    def __init__(self, direct: Client, relay: Relay, directory: Path) -> None:
        self.gates = [directory / "missed", directory / "ending"]
        for gate in self.gates:
            os.mkfifo(gate)
        self._relay = relay
        self._direct = direct
        self.session_id: str = self._direct.create_session()["id"]
        self._direct.run("; ".join(["say before"] * PAGE), session_id=self.session_id).wait()
        missed, ending = self.gates
        self.script = f"say first; process cat {missed}; say second; process cat {ending}; say third"

    def happen(self, *, is_over: bool) -> None:
        """The follower is cut off, and comes back when the second message, or all, was said."""
        self._relay.lose_streams()
        self.gates[0].write_text("")
        if is_over:
            self.end()
        while not self._is_said("third" if is_over else "second"):
            pass
        if is_over:
            assert self._direct.call("GET", "/runs/r?wait=30")["state"] == "completed"
        self._relay.let_return()

    def end(self) -> None:
        self.gates[1].write_text("")

    def _is_said(self, text: str) -> bool:
        messages = self._direct.messages(self.session_id)
        return any({"type": "text", "text": text} in message["parts"] for message in messages)


@pytest.mark.parametrize("is_over", [True, False], ids=["over", "going on"])
def test_a_program_reads_again_what_its_stream_did_not_tell(
    direct: Client, relay: Relay, tmp_path: Path, *, is_over: bool
) -> None:
    missed = Missed(direct, relay, tmp_path)
    with Client.connect(str(tmp_path), host=relay.host) as client:
        running = client.run(missed.script, session_id=missed.session_id, run_id="r")
        heard = ""
        for text in running:
            heard += text
            if heard == "first":
                missed.happen(is_over=is_over)
            elif heard.endswith("second") and not is_over:
                missed.end()
    assert heard == "first\n\nsecond\n\nthird"
    assert running.outcome is not None
    assert running.outcome["text"] == "third"


@pytest.mark.parametrize("is_over", [True, False], ids=["over", "going on"])
async def test_an_asynchronous_program_does_too(direct: Client, relay: Relay, tmp_path: Path, *, is_over: bool) -> None:
    missed = await asyncio.to_thread(Missed, direct, relay, tmp_path)
    async with await AsyncClient.connect(str(tmp_path), host=relay.host) as client:
        running = await client.run(missed.script, session_id=missed.session_id, run_id="r")
        heard = ""
        async for text in running:
            heard += text
            if heard == "first":
                await asyncio.to_thread(missed.happen, is_over=is_over)
            elif heard.endswith("second") and not is_over:
                await asyncio.to_thread(missed.end)
    assert heard == "first\n\nsecond\n\nthird"
    assert running.outcome is not None
    assert running.outcome.text == "third"
