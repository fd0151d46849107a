"""A conversation that fills its context, with real processes: summarized in the run, also when the server is killed."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import Kedge, finish
from tests.e2e.home import Home
from tests.support.model_control import ModelControl, model_thread

ASKED = "replaced by a summary"  # words of the request for one
WINDOW = 10_000
LOOK = {"text": "I look.", "tool_calls": [{"name": "view", "input": {"path": "notes.txt"}}], "input_tokens": 9_500}


@pytest.fixture(scope="module")
def models() -> Generator[ModelControl]:
    """Of these tests alone: the request for a summary is the same in all of them."""
    with model_thread() as models:
        yield models


@pytest.fixture
def kedge(home: Home, models: ModelControl) -> Kedge:
    models.reset()
    work = home.directory / "work"
    work.mkdir()
    (work / "notes.txt").write_text("4711\n")
    (work / "kedge.toml").write_text(f"[providers.openai.models.fake-model]\ncontext_window = {WINDOW}\n")
    return Kedge(home, work)


def messages_of(done_out: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in done_out.splitlines()]
    whole = {e["payload"]["payload"]["id"]: e["payload"]["payload"] for e in events if e["type"] == "message"}
    return list(whole.values())


def test_a_run_goes_on_after_a_summary_which_is_not_printed(kedge: Kedge, models: ModelControl) -> None:
    models.on({"text": "The number is 4711."}, prompt=ASKED)
    models.plan_next(LOOK, {"text": "done, it is 4711"})
    done = kedge.run("--stream", "find the number")
    assert (done.code, done.out) == (0, "I look.\n\ndone, it is 4711\n"), done
    assert "kedge: The context is nearly full" in done.err
    last = models.stats()["calls"][-1]["body"]["messages"]
    assert [message["role"] for message in last] == ["system", "user"]
    assert "find the number" in json.dumps(last[1])


def test_a_server_killed_during_a_summary_makes_it_anew(kedge: Kedge, models: ModelControl, gate: str) -> None:
    models.on({"text": "never", "gate": gate, "gate_after": 0}, prompt=ASKED)
    models.plan_next(LOOK)
    running = kedge.start("run", "find the number", "--json", "-q")
    models.wait(held=gate)
    pid = kedge.server_pid()
    assert pid is not None
    models.on({"text": "The number is 4711."}, prompt=ASKED)
    models.plan_next({"text": "done, it is 4711"})
    os.kill(pid, signal.SIGKILL)
    done = finish(running)
    assert done.code == 0, done
    end = json.loads(done.out.splitlines()[-1])["payload"]["payload"]
    assert end["text"] == "done, it is 4711"
    summaries = [message for message in messages_of(done.out) if message.get("summary")]
    assert [message["parts"][-1]["reason"] for message in summaries] == ["interrupted", "end_turn"]
    results = [message for message in messages_of(done.out) if message["role"] == "tool"]
    assert len(results) == 1  # nothing was done twice


def test_files_and_images_reach_the_model(kedge: Kedge, models: ModelControl, tmp_path: Path) -> None:
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    (tmp_path / "pixel.png").write_bytes(pixel)
    (tmp_path / "note.txt").write_text("look closely")
    (tmp_path / "system.md").write_text("You only see.")
    models.plan_next({"text": "a pixel"})
    files = ["-f", str(tmp_path / "pixel.png"), "-f", str(tmp_path / "note.txt")]
    done = kedge.run("-q", "what is this?", *files, "--system-file", str(tmp_path / "system.md"))
    assert (done.code, done.out) == (0, "a pixel\n"), done
    system, user = models.stats()["calls"][-1]["body"]["messages"]
    assert "You only see." in json.dumps(system)
    told = json.dumps(user)
    assert base64.b64encode(pixel).decode() in told
    assert "look closely" in told


def test_a_run_that_reaches_its_bound_fails_with_a_word(kedge: Kedge, models: ModelControl) -> None:
    models.plan_next({**LOOK, "input_tokens": 10}, {"text": "too late"})
    done = kedge.run("-q", "--max-steps", "1", "find the number")
    assert done.code == 1
    assert "--max-steps" in done.err
