"""The file of stored keys is its owner's alone, whole at every moment, and never loses what somebody else put there."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import Credentials, last_four
from kedge.models.keys.stores import KeyFile
from kedge.protocol.errors import StoreUnavailable
from tests.server.process import ROOT

KEY = "planted.key.0123456789"
LIMIT_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials.json"


def content(path: Path) -> Any:
    return json.loads(path.read_text())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def in_a_process(code: str, *args: str) -> subprocess.Popen[str]:
    head = "import sys; from pathlib import Path; from kedge.models.keys.stores import KeyFile\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_key_is_stored_replaced_and_removed(path: Path) -> None:
    file = KeyFile(path)
    assert file.put("a", {"api_key": KEY}) is None
    assert mode_of(path) == 0o600
    before = file.put("a", {"api_key": "another"})
    assert before is not None
    assert before.api_key == KEY
    file.put("b", {"keyring": True, "last_four": "wxyz"})
    assert {name: (e.api_key, e.keyring, e.last_four) for name, e in file.read().items()} == {
        "a": ("another", False, None),
        "b": ("", True, "wxyz"),
    }
    file.put("a", None)
    assert file.put("a", None) is None
    assert list(file.read()) == ["b"]
    assert KEY not in path.read_text()
    assert KEY not in repr(before)


def test_what_a_later_kedge_added_is_kept(path: Path) -> None:
    path.write_text(json.dumps({"version": 1, "more": [1], "providers": {"a": {"api_key": "x", "later": 2}, "b": {}}}))
    path.chmod(0o600)
    KeyFile(path).put("a", {"keyring": True})
    assert content(path) == {"version": 1, "more": [1], "providers": {"a": {"keyring": True, "later": 2}, "b": {}}}


@pytest.mark.parametrize("text", [f'{{"providers": {{"a": "{KEY}"}}}}', KEY, "", "[]", '{"version": 2}'])
def test_a_file_that_cannot_be_used_is_not_written_over(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        KeyFile(path).put("a", {"api_key": KEY})
    assert KEY not in caught.value.text
    assert path.read_text() == text


def test_a_file_that_others_can_read_is_neither_used_nor_written(path: Path) -> None:
    KeyFile(path).put("a", {"api_key": KEY})
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        KeyFile(path).put("b", {"api_key": KEY})
    assert list(content(path)["providers"]) == ["a"]
    assert mode_of(path) == 0o640, "nobody but its owner says who may read it"


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "keys.json"
    target.parent.mkdir()
    path.symlink_to(target)
    KeyFile(path).put("a", {"api_key": KEY})
    assert path.is_symlink()
    assert (list(content(target)["providers"]), mode_of(target)) == (["a"], 0o600)


@pytest.mark.parametrize("place", ["missing/credentials.json", "file/credentials.json", "."])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreUnavailable, ConfigError)) as caught:
        KeyFile(tmp_path / place).put("a", {"api_key": KEY})
    assert KEY not in str(caught.value)


def test_a_full_disk_changes_nothing(path: Path) -> None:
    KeyFile(path).put("a", {"api_key": "before"})
    code = """import resource
from kedge.protocol.errors import StoreUnavailable
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
try: KeyFile(Path(sys.argv[1])).put("b", {"api_key": "x" * 100})
except StoreUnavailable as error: print(error.code, error.message)"""
    out, err = in_a_process(code, str(path)).communicate(timeout=LIMIT_S)
    assert out.startswith("store_unavailable nothing was stored: "), err
    assert "xxx" not in out + err
    assert list(KeyFile(path).read()) == ["a"]
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


def test_a_process_that_is_killed_in_the_middle_leaves_the_file_as_it_was(path: Path) -> None:
    KeyFile(path).put("a", {"api_key": "before"})
    code = """import os
Path.replace = lambda *_: os.kill(os.getpid(), 9)
KeyFile(Path(sys.argv[1])).put("a", {"api_key": "after"})"""
    process = in_a_process(code, str(path))
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGKILL
    assert KeyFile(path).read()["a"].api_key == "before"
    KeyFile(path).put("a", {"api_key": "later"})
    assert KeyFile(path).read()["a"].api_key == "later"
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]


def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    code = """for number in range(20): KeyFile(Path(sys.argv[1])).put(f"{sys.argv[2]}{number}", {"api_key": "k"})"""
    processes = [in_a_process(code, str(path), name) for name in "abc"]
    told = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert set(KeyFile(path).read()) == {f"{name}{number}" for name in "abc" for number in range(20)}


async def test_a_reader_never_sees_half_a_file(path: Path) -> None:
    file, credentials = KeyFile(path), Credentials(path)
    file.put("first", {"api_key": KEY})
    writing = asyncio.create_task(
        asyncio.to_thread(lambda: [file.put("a", {"api_key": "k" * n}) for n in range(1, 60)])
    )
    while not writing.done():
        assert "first" in await credentials.load_stored()
    await writing


@given(st.text(max_size=40))
def test_of_a_key_at_most_four_characters_are_shown_and_of_a_short_one_none(key: str) -> None:
    shown = last_four(key)
    assert shown == (key[-4:] if len(key) >= 12 else None)
