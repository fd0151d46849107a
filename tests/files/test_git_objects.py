"""Clean files of a repository are taken from git, byte for byte, or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kedge.files import git_objects
from kedge.files.states import UNREADABLE, compute_digest
from kedge.files.versions import Versions

OLD = 1_600_000_000
ENV = {**os.environ, "HOME": "/nowhere", "XDG_CONFIG_HOME": "/nowhere"}


def git(root: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
    subprocess.run(command, cwd=root, check=True, capture_output=True, env=ENV)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "d").mkdir(parents=True)
    for name in ("a", "b", "d/c"):
        (root / name).write_text(f"{name}\r\n")
        os.utime(root / name, (OLD, OLD))
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_objects, "MIN_FILES", -1)


def indexed(root: Path, *names: bytes) -> dict[bytes, git_objects.Indexed]:
    return git_objects.read_index(os.fsencode(root), ENV, names)


@pytest.mark.parametrize("version", ["2", "4"])
def test_a_clean_file_is_known_by_its_object(root: Path, version: str) -> None:
    git(root, "update-index", "--index-version", version)
    found = indexed(root)
    assert sorted(found) == [b"a", b"b", b"d/c"]
    assert found[b"d/c"].matches((root / "d/c").lstat())
    shas = {name: entry.sha for name, entry in found.items()}
    contents = git_objects.read_objects(os.fsencode(root), ENV, [*shas.values(), "0" * 40])
    assert contents == {shas[name]: f"{name.decode()}\r\n".encode() for name in shas}


def test_a_workspace_below_the_repository_has_its_own_names(root: Path) -> None:
    assert sorted(indexed(root / "d")) == [b"c"]


def test_a_file_that_was_touched_since_is_not_taken_for_its_object(root: Path) -> None:
    (root / "a").write_text("A\r\n")
    os.utime(root / "a", (OLD, OLD))
    assert not indexed(root)[b"a"].matches((root / "a").lstat()), "its size is the same, and so is its time"


def test_a_file_as_young_as_the_index_proves_nothing(root: Path) -> None:
    future = (root / ".git/index").stat().st_mtime + 10
    os.utime(root / "a", (future, future))
    git(root, "update-index", "--refresh")
    assert b"a" not in indexed(root)


@pytest.mark.parametrize("rule", ["* text=auto", "*.bin filter=lfs", "a ident", "a working-tree-encoding=UTF-16"])
def test_where_files_and_objects_may_differ_git_is_not_asked(root: Path, rule: str) -> None:
    (root / ".gitattributes").write_text(f"{rule}\n")
    assert indexed(root, b".gitattributes") == {}


def test_where_line_ends_are_converted_git_is_not_asked(root: Path) -> None:
    git(root, "config", "core.autocrlf", "true")
    assert indexed(root) == {}


def test_no_repository_is_no_trouble(tmp_path: Path) -> None:
    assert indexed(tmp_path) == {}


def test_a_look_keeps_what_changed_and_nothing_else(root: Path, tmp_path: Path) -> None:
    versions, name = Versions(tmp_path), os.fsencode(root)
    assert versions.trees.scan(name, ENV, 2**30) == []
    assert not versions.blobs.has(compute_digest(b"a\r\n")), "git has it"
    (root / "a").write_text("changed")
    (root / "b").unlink()
    (root / "d/c").touch()
    found = {each.path.rpartition(b"/")[2]: each for each in versions.trees.scan(name, ENV, 2**30)}
    assert sorted(found) == [b"a", b"b"], "one that was only touched did not change"
    assert versions.blobs.get(found[b"a"].before.digest) == b"a\r\n"
    assert versions.blobs.get(found[b"b"].before.digest) == b"b\r\n"
    assert found[b"b"].after.kind == "absent"
    versions.close()


def test_an_object_that_is_gone_is_a_version_that_nobody_saw(root: Path, tmp_path: Path) -> None:
    versions, name = Versions(tmp_path), os.fsencode(root)
    versions.trees.scan(name, ENV, 2**30)
    shutil.rmtree(root / ".git/objects")
    (root / ".git/objects").mkdir()
    (root / "a").write_text("changed")
    (found,) = versions.trees.scan(name, ENV, 2**30)
    assert found.before == UNREADABLE
    versions.close()


def test_an_object_that_the_repository_replaces_is_still_itself(root: Path) -> None:
    (root / "other").write_bytes(b"x\r\n")  # as long as the first
    git(root, "add", "other")
    shas = {name: entry.sha for name, entry in indexed(root).items()}
    replacement = subprocess.run(
        ["git", "hash-object", "other"], cwd=root, check=True, capture_output=True, text=True, env=ENV
    ).stdout.strip()
    git(root, "replace", "-f", shas[b"a"], replacement)
    assert git_objects.read_objects(os.fsencode(root), ENV, [shas[b"a"]]) == {shas[b"a"]: b"a\r\n"}


def test_a_large_file_is_not_taken_from_git_either(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.files.scan.MAX_STORED_BYTES", 2)
    monkeypatch.setattr("kedge.files.states.MAX_STORED_BYTES", 2)
    versions = Versions(tmp_path)
    versions.trees.scan(os.fsencode(root), ENV, 2**30)
    (root / "a").write_bytes(b"1")
    (found,) = versions.trees.scan(os.fsencode(root), ENV, 2**30)
    assert (found.before.kind, found.after.kind) == ("large", "file")
    versions.close()


def test_many_objects_are_fetched_some_at_a_time(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.files.scan.BATCH_BYTES", 4)
    versions = Versions(tmp_path)
    versions.trees.scan(os.fsencode(root), ENV, 2**30)
    for name in ("a", "b", "d/c"):
        (root / name).unlink()
    found = versions.trees.scan(os.fsencode(root), ENV, 2**30)
    kept = {each.path.rpartition(b"/")[2]: versions.blobs.get(each.before.digest) for each in found}
    assert {kept[b"a"], kept[b"b"], kept[b"c"]} == {b"a\r\n", b"b\r\n", b"d/c\r\n"}
    versions.close()


def test_nothing_that_a_repository_brings_is_started(root: Path, tmp_path: Path) -> None:
    sha = indexed(root)[b"a"].sha
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho $0 $* >> {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    (root / "tools").mkdir()
    shutil.copy(trap, root / "tools/git")
    (root / ".gitattributes").write_text("* filter=trap diff=trap\n")
    settings = {
        "core.fsmonitor": str(trap),
        "core.hooksPath": str(root / "tools"),
        "core.sshCommand": str(trap),
        "core.pager": str(trap),
        "core.editor": str(trap),
        "core.askPass": str(trap),
        "credential.helper": f"!{trap}",
        "filter.trap.clean": str(trap),
        "filter.trap.smudge": str(trap),
        "filter.trap.process": str(trap),
        "diff.trap.textconv": str(trap),
        "diff.external": str(trap),
        "uploadpack.packObjectsHook": str(trap),
        "remote.origin.url": "ssh://nowhere.invalid/x",
        "remote.origin.uploadpack": str(trap),
        "remote.origin.promisor": "true",
        "remote.origin.partialclonefilter": "blob:none",
        "extensions.partialClone": "origin",
        "alias.ls-files": f"!{trap}",
        "alias.cat-file": f"!{trap}",
    }
    for name, value in settings.items():
        git(root, "config", name, value)
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        shutil.copy(trap, root / "tools" / name)
    for each in (root / ".git/objects").glob("??"):
        shutil.rmtree(each)  # so that an object is missing, and would be fetched
    versions = Versions(tmp_path)
    env = {**ENV, "PATH": f"tools:{ENV['PATH']}"}
    versions.trees.scan(os.fsencode(root), env, 2**30)
    (root / "a").unlink()
    (root / "new").write_text("new")
    git_root = os.fsencode(root)
    found = versions.trees.scan(git_root, env, 2**30)
    assert [each.path.rpartition(b"/")[2] for each in found] == [b"a", b"new"]
    assert git_objects.read_objects(git_root, env, [sha]) == {}
    assert git_objects.find_ignored(git_root, env, [b"new"]) == set()
    versions.close()
    assert not (tmp_path / "sprung").exists()
