"""A step brings one path back, and touches nothing behind a link, whoever put it there and when."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kedge.files import restore
from kedge.files.restore import ChangedMeanwhile, Step
from kedge.files.states import ABSENT, Observation, State, compute_digest, observe_below


def restored(root: Path, name: str, now: State, then: State) -> None:
    step = Step(os.fsencode(root / name), now, then)
    restore.restore(step, lambda _: b"old", "undo-1", os.fsencode(root))


OLD = State("file", compute_digest(b"old"), 0o644, 3)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "elsewhere/deep/file").write_bytes(b"new")
    (tmp_path / "root/d/deep").mkdir(parents=True)
    (tmp_path / "root/d/deep/file").write_bytes(b"new")
    return tmp_path / "root"


def state(root: Path, name: str) -> State:
    return observe_below(os.fsencode(root), os.fsencode(root / name)).state


@pytest.mark.parametrize("link", ["d", "d/deep"])
def test_what_is_behind_a_link_is_not_this_path(root: Path, link: str) -> None:
    new = state(root, "d/deep/file")
    target = root.parent / ("elsewhere" if link == "d" else "elsewhere/deep")
    shutil.rmtree(root / link)
    (root / link).symlink_to(target)
    assert state(root, "d/deep/file") == ABSENT
    with pytest.raises(ChangedMeanwhile):
        restored(root, "d/deep/file", new, OLD)
    with pytest.raises(ChangedMeanwhile):
        restored(root, "d/deep/other", ABSENT, OLD)
    restored(root, "d/deep/file", new, ABSENT)  # it is not there any more
    assert [path.name for path in (root.parent / "elsewhere/deep").iterdir()] == ["file"]
    assert (root.parent / "elsewhere/deep/file").read_bytes() == b"new"


def test_a_link_that_comes_in_the_middle_of_a_step_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the write: as a job that works against us would."""
    new, real = state(root, "d/deep/file"), restore.observe

    def swap(path: bytes, at: int | None = None) -> Observation:
        seen = real(path, at)
        (root / "d").rename(root / "was")
        (root / "d").symlink_to(root.parent / "elsewhere")
        return seen

    monkeypatch.setattr(restore, "observe", swap)
    with pytest.raises(ChangedMeanwhile):
        restored(root, "d/deep/file", new, OLD)
    assert (root.parent / "elsewhere/deep/file").read_bytes() == b"new"


def test_empty_directories_behind_a_link_stay(root: Path) -> None:
    (root.parent / "elsewhere/hollow").mkdir()
    shutil.rmtree(root / "d")
    (root / "d").symlink_to(root.parent / "elsewhere")
    restored(root, "d/hollow/file", OLD, ABSENT)
    assert (root.parent / "elsewhere/hollow").is_dir()


def test_a_tree_that_somebody_took_away_is_not_made_again(root: Path) -> None:
    shutil.rmtree(root)
    with pytest.raises(ChangedMeanwhile):
        restored(root, "gone", ABSENT, OLD)
    assert not root.exists()
