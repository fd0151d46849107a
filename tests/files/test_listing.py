"""Which files a tree has is found out in a bounded time, whatever the programs do that know it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.files import listing
from kedge.files.listing import CannotScan


def test_a_program_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(listing, "LIST_S", 0.2)
    env = {"PATH": f"{program.parent}:{os.defpath}"}
    with pytest.raises(CannotScan, match="takes over"):
        listing.list_files(os.fsencode(root), env)
