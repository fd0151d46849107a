"""A whole task as its user sees it: `kedge run` in a real repository, with real tools, on every wire."""

from __future__ import annotations

import base64
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from kedge.config.schema import WireName
from tests.e2e.project import UNITTEST, Project, bash, call, repair, step
from tests.server.process import Server
from tests.support.invariants import check_all_ended
from tests.support.model_control import ModelControl
from tests.support.wires import WIRES, conversation


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    return Project(server, models, tmp_path / "shop")


VIEW = step(call("view", path="shop/price.py"))


@pytest.mark.parametrize("wire", WIRES)
def test_a_mistake_is_found_read_mended_and_checked(project: Project, wire: WireName) -> None:
    prompt = project.prompt(*repair(), text="Mended: `total` took 1 away.\nAll tests pass.")
    done = project.run(prompt, "-y", wire=wire)
    assert (done.code, done.out) == (0, "Mended: `total` took 1 away.\nAll tests pass.\n"), done
    assert project.status() == [" M shop/price.py"], "and nothing else was touched"
    assert project.price == 'def total(prices):\n    """What all of it costs."""\n    return sum(prices)\n'
    assert project.passes
    log = project.log()
    check_all_ended(log)
    found, tests, price, _, failed, _, again, _, passed = project.results(prompt)
    assert "shop/price.py" in found.content
    assert "tests/test_price.py" in tests.content
    assert "return sum(prices) - 1" in price.content
    assert "5 != 6" in failed.content
    assert "7 != 6" in again.content
    assert "OK" in passed.content
    assert [result.is_error for result in project.results(prompt)] == [False] * 9
    assert len(project.requests(prompt)) == 6, "one call of the model a step"


@pytest.mark.parametrize("wire", WIRES)
def test_where_nobody_is_asked_a_command_is_refused_at_once_and_the_exit_code_says_so(
    project: Project, wire: WireName
) -> None:
    prompt = project.prompt(VIEW, step(bash(f"{UNITTEST} && touch made")), text="I could not run the tests.")
    done = project.run(prompt, wire=wire)
    assert (done.code, done.out) == (4, "I could not run the tests.\n"), done
    assert f". It was: run {UNITTEST} && touch made\n" in done.err
    flags = shlex.split(done.err.partition("allow it with ")[2].partition(". It was: ")[0])
    assert flags[::2] == ["--allow", "--allow"]
    seen, refused = project.results(prompt)
    assert not seen.is_error
    assert refused.is_error
    assert f"`{UNITTEST}` and `touch made` need permissions" in refused.content
    assert project.status() == []
    again = project.prompt(step(bash(f"{UNITTEST} && touch made")), text="Run.")
    assert project.run(again, *flags, wire=wire).code == 0, "what it said was true"


def test_what_only_looks_needs_nobody(project: Project) -> None:
    looking = [bash("git status --short"), bash("grep -rn total shop | head -3"), bash("ls && wc -l shop/price.py")]
    prompt = project.prompt(VIEW, step(*looking, call("ls", path=".")), text="Seen.")
    done = project.run(prompt)
    assert (done.code, done.out) == (0, "Seen.\n"), done
    assert [result.is_error for result in project.results(prompt)] == [False] * 5


SCHEMA = {"type": "object", "properties": {"fixed": {"type": "boolean"}}, "required": ["fixed"]}
CORRECTED = "your answer was not accepted"


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_is_held_to_its_schema(project: Project, tmp_path: Path, wire: WireName) -> None:
    ours = f"schema of {project.directory}"  # the model is told the schema, so its script can be found by it
    (tmp_path / "schema.json").write_text(json.dumps({**SCHEMA, "title": ours}))
    args = ["-q", "--output-schema", str(tmp_path / "schema.json")]
    prompt = project.prompt(VIEW, text="It is fixed.")
    project.models.on({"text": '{"fixed": true}'}, system=ours, prompt=CORRECTED)
    done = project.run(prompt, *args, wire=wire)
    assert (done.code, json.loads(done.out), done.err) == (0, {"fixed": True}, ""), done
    project.models.on({"text": '{"fixed": "yes"}'}, system=ours, prompt=CORRECTED)
    done = project.run(project.prompt(VIEW, text="It is fixed."), *args, wire=wire)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
    assert "kedge: The answer does not match --output-schema: the schema does not accept it" in done.err


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)


@pytest.mark.parametrize("wire", WIRES)
def test_attached_files_reach_the_model(project: Project, tmp_path: Path, wire: WireName) -> None:
    (tmp_path / "shot.png").write_bytes(PNG)
    (tmp_path / "notes.md").write_text("# Prices\nare never negative: ä😀\n")
    prompt = project.prompt(VIEW, text="Seen.")
    files = [str(tmp_path / "shot.png"), str(tmp_path / "notes.md")]
    done = project.run(prompt, "-q", "-f", files[0], "-f", files[1], wire=wire)
    assert (done.code, done.out, done.err) == (0, "Seen.\n", ""), done
    for body in project.requests(prompt):
        user = next(message for message in conversation(body) if message["role"] == "user")
        sent = json.dumps(user, ensure_ascii=False)
        assert "are never negative: ä😀" in sent
        assert "notes.md" in sent
        assert _image(user.get("content") or user["parts"], wire) == "image/png"
        assert prompt in sent


def _image(content: list[dict[str, Any]], wire: WireName) -> str:
    if wire == "anthropic":
        (source,) = [part["source"] for part in content if part["type"] == "image"]
        kind, data = source["media_type"], source["data"]
    elif wire == "gemini":
        (inline,) = [part["inlineData"] for part in content if "inlineData" in part]
        kind, data = inline["mimeType"], inline["data"]
    else:
        (url,) = [part["image_url"] for part in content if "image_url" in part]
        head, _, data = (url if wire == "responses" else url["url"]).partition(";base64,")
        kind = head.removeprefix("data:")
    assert base64.b64decode(data) == PNG
    return kind
