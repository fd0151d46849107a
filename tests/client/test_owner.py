"""Who stopped a server is told so when its process is gone, not before."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kedge.client.server_process import OwnerProcess
from kedge.client.waiter import Waiter
from kedge.protocol.address import OWNER_FILE

LIMIT_S = 20.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        (tmp_path / OWNER_FILE).write_text(f"process {child.pid}\n")
        yield child


@pytest.mark.parametrize("has_pidfd", sorted({False, hasattr(os, "pidfd_open")}))
def test_the_end_of_the_owner_is_waited_for(
    has_pidfd: bool, process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with closing(OwnerProcess(str(tmp_path))) as owner:
        owner.wait_for_end(Waiter(), 0.01)
        assert process.poll() is None, "it did not end; only the time is over"
        assert process.stdin is not None
        waiting = threading.Thread(target=owner.wait_for_end, args=(Waiter(), LIMIT_S))
        waiting.start()
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
        waiting.join(LIMIT_S / 2)
        assert not waiting.is_alive()


@pytest.mark.parametrize(
    "owner", [None, "", "process", "process one", "process -1", "process 0", "somebody 12", "\xff"]
)
def test_an_owner_that_cannot_be_known_is_not_waited_for(owner: str | None, tmp_path: Path) -> None:
    if owner is not None:
        (tmp_path / OWNER_FILE).write_text(owner, encoding="latin-1")
    with closing(OwnerProcess(str(tmp_path))) as unknown:
        unknown.wait_for_end(Waiter(), 3600)
