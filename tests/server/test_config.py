"""The configuration over HTTP: shown without secrets, changed in its two places, and told as it changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kedge.protocol.events import ConfigChanged
from tests.server.client import Client, done
from tests.server.conftest import Start
from tests.server.process import Place

needs_inotify = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere changes are noticed on use")


def values(answer: dict[str, Any]) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in answer["values"]}


@pytest.fixture
def alone(start: Start) -> Client:
    """A server of one's own: the user's file is shared by all who use one."""
    return start(env={"PLANTED": "planted-secret-wxyz"}).client


def test_a_key_is_set_shown_and_removed_in_the_workspace(client: Client, workspace: str, tmp_path: Path) -> None:
    body = {"scope": "workspace", "key": "model"}
    shown = done(client.post(f"{workspace}/config/set", {**body, "value": "a/b"}))
    assert shown == done(client.get(f"{workspace}/config"))
    (row,) = [row for row in shown["values"] if row["key"] == "model"]
    file = str(tmp_path / "kedge.toml")
    assert row == {"key": "model", "value": "a/b", "layer": "workspace", "name": file, "line": 1}
    assert {"path": file, "layer": "workspace", "exists": True, "trusted": False} in shown["files"]
    assert values(done(client.post(f"{workspace}/config/remove", body)))["model"] is None


def test_what_is_set_for_the_user_holds_in_every_workspace(alone: Client, place: Place, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    workspaces = [alone.workspace(each) for each in (one, two)]
    body = {"scope": "global", "model": "a/b"}
    done(alone.post(f"{workspaces[0]}/config/model", body))
    done(alone.post(f"{workspaces[0]}/config/model", {**body, "model": "a/small", "small": True}))
    for workspace in workspaces:
        found = values(done(alone.get(f"{workspace}/config")))
        assert (found["model"], found["small_model"]) == ("a/b", "a/small")
    assert (place.config_dir / "kedge" / "config.toml").read_text() == 'model = "a/b"\nsmall_model = "a/small"\n'


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("modle", "x", "did you mean model?"),
        ("agent.max_steps", 0, "expected a whole number of at least 1"),
        ("agent", "x", "agent is a table"),
        ("providers.x.api_key", "planted-secret", "${NAME}"),
        ("x = 1 #", 1, "x = 1 #"),
    ],
)
def test_a_setting_that_is_wrong_is_refused(client: Client, tmp_path: Path, key: str, value: object, why: str) -> None:
    workspace = client.workspace(tmp_path)
    answer = client.post(f"{workspace}/config/set", {"scope": "workspace", "key": key, "value": value})
    assert (answer.status, answer.code) == (422, "bad_setting")
    assert why in answer.json["message"]
    assert "planted" not in answer.json["message"]
    assert not (tmp_path / "kedge.toml").exists()


def test_no_secret_is_sent(alone: Client, place: Place, tmp_path: Path) -> None:
    file = place.config_dir / "kedge" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        '[providers.x]\napi_key = "${PLANTED}"\nheaders.y = "${PLANTED}"\nbase_url = "http://u:planted@x/"\n'
    )
    body = alone.get(f"{alone.workspace(tmp_path)}/config").body.decode()
    assert "planted" not in body
    assert body.count("…wxyz") == 2


def test_what_a_repository_may_not_say_is_told(client: Client, tmp_path: Path) -> None:
    (tmp_path / "kedge.toml").write_text("\npermissions.mode = 'yolo'\n")
    shown = done(client.get(f"{client.workspace(tmp_path)}/config"))
    assert values(shown)["permissions.mode"] == "ask"
    (ignored,) = shown["ignored"]
    assert (ignored["file"], ignored["line"], ignored["key"]) == (str(tmp_path / "kedge.toml"), 2, "permissions.mode")


def test_a_broken_file_is_an_answer_and_the_server_goes_on(client: Client, tmp_path: Path) -> None:
    workspace = client.workspace(tmp_path)
    (tmp_path / "kedge.toml").write_text("model = \n")
    for path, body in (("config", None), ("config/set", {"scope": "workspace", "key": "model", "value": "a/b"})):
        answer = client.ask("POST" if body else "GET", f"{workspace}/{path}", body)
        assert (answer.status, answer.code) == (422, "bad_config")
        assert f"{tmp_path}/kedge.toml:1: is not valid TOML" in answer.json["message"]
    (tmp_path / "kedge.toml").write_text("model = 'a/b'\n")
    assert values(done(client.get(f"{workspace}/config")))["model"] == "a/b"


def test_each_change_over_http_is_told_once(client: Client, workspace: str) -> None:
    with client.events(workspace) as events:
        events.until("caught_up")
        for value in ("a/1", "a/1", "a/2"):
            done(client.post(f"{workspace}/config/set", {"scope": "workspace", "key": "model", "value": value}))
        done(client.post(f"{workspace}/config/remove", {"scope": "workspace", "key": "model"}))
        client.session(workspace, "the end")
        told = [event for event in events.until("session") if event.type == "config_changed"]
    assert [event.change for event in told] == ["updated"] * 3
    workspace_id = workspace.rpartition("/")[2]
    assert {event.payload.workspace_id for event in told if isinstance(event.payload, ConfigChanged)} == {workspace_id}


@needs_inotify
def test_a_file_that_somebody_edits_is_told_to_who_follows(client: Client, workspace: str, tmp_path: Path) -> None:
    with client.events(workspace) as events:
        events.until("caught_up")
        done(client.get(f"{workspace}/config"))  # from here on a change is one
        other = tmp_path / "edited"
        other.write_text("model = 'a/b'\n")
        other.rename(tmp_path / "kedge.toml")
        events.until("config_changed")
    assert values(done(client.get(f"{workspace}/config")))["model"] == "a/b"


def test_who_comes_later_reads_of_the_change_in_the_log(client: Client, workspace: str) -> None:
    done(client.post(f"{workspace}/config/set", {"scope": "workspace", "key": "model", "value": "a/b"}))
    told = done(client.get(f"{workspace}/log"))["events"][-1]
    workspace_id = workspace.rpartition("/")[2]
    payload = {"type": "updated", "payload": {"workspace_id": workspace_id}}
    assert (told["type"], told["payload"]) == ("config_changed", payload)
