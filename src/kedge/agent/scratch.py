"""The sessions' own directories, where tools put what was too long to show: they go with their session, or with age."""

from __future__ import annotations

import time
from pathlib import Path

from kedge.files.safe_open import remove_tree

KEPT_S = 30 * 86_400  # as long as the story of what was done


def directory_of(data_dir: Path, session_id: str) -> Path:
    return data_dir / "scratch" / session_id


def remove(data_dir: Path, session_id: str) -> None:
    remove_tree(directory_of(data_dir, session_id))


def remove_old(data_dir: Path) -> None:
    """Also of sessions that were deleted while nobody could clean up."""
    oldest = time.time() - KEPT_S
    for directory in (data_dir / "scratch").glob("*"):
        try:
            if directory.stat().st_mtime < oldest:
                remove_tree(directory)
        except OSError:
            continue  # gone already
