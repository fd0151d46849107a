"""After whole tasks with planted keys, none of them is found in any byte that Kedge wrote, sent or printed (P16)."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from kedge.config.schema import WireName
from tests.client.command import Done
from tests.e2e.home import Home
from tests.e2e.project import Project, at_home, bash, repair, step, wire_env
from tests.server.client import done
from tests.support.model_control import ModelControl, model_thread
from tests.support.wires import WAYS, WIRES

KEY = "planted.key.5c1f"
HEADER = "planted.header.77aa"
SECRETS = (KEY, HEADER)


class Source(NamedTuple):
    """Where the key is: a line of the user's configuration, and the variable that the caller's shell has."""

    config: str = ""
    variable: str = ""


SOURCES = {
    "the environment": Source(variable="the provider's"),
    "the configuration": Source(f'api_key = "{KEY}"\n'),
    "a variable that the configuration names": Source('api_key = "${MY_OWN:-}"\n', variable="MY_OWN"),
    "a command": Source('api_key_command = "cat SCRATCH/key"\n'),
}


# Where a key comes from is nothing that a wire knows: each wire has it from the first place, and each other place is
# tried with another wire.
FIRST, *OTHERS = SOURCES
CASES = [*((wire, FIRST) for wire in WIRES), *zip(WIRES, OTHERS, strict=False)]


@pytest.fixture
def models() -> Generator[ModelControl]:
    """One for each case: all that it was asked is read at the end."""
    with model_thread() as models:
        yield models


@pytest.mark.parametrize(("wire", "name"), CASES)
def test_a_planted_key_is_used_and_found_nowhere(home: Home, tmp_path: Path, wire: WireName, name: str) -> None:
    source = SOURCES[name]
    (tmp_path / "key").write_text(f"{KEY}\n")
    config = f'[providers.{WAYS[wire].provider}]\nheaders.X-Gateway = "{HEADER}"\n{source.config}'
    env = wire_env(wire, home.models, key="")
    if source.variable:
        env[source.variable if source.config else WAYS[wire].key_variable] = KEY
    with at_home(home, config.replace("SCRATCH", str(tmp_path))) as project:
        said = tasks(project, env, is_in_env=bool(source.variable))
        seen = listings(project, env)
        calls = project.models.stats()["calls"]
    assert [word for word in SECRETS if word in seen or word in said] == []
    mine = [call for call in calls if HEADER in str(call["headers"])]
    assert len(mine) >= 9, "and yet they were used"
    assert all(KEY in str(call["headers"]) for call in mine)
    written = [path for path in home.directory.rglob("*") if path.is_file() and path.name != "config.toml"]
    assert any(path.name == "server.log" for path in written)
    assert any(path.suffix == ".db" for path in written)
    assert [path for path in written if any(word.encode() in path.read_bytes() for word in SECRETS)] == []


def tasks(project: Project, env: dict[str, str], *, is_in_env: bool) -> str:
    """All that is printed by tasks that succeed, and by ones whose provider says the secrets aloud."""
    loud = {"message": f"{KEY} and {HEADER} are wrong", "error": "invalid_api_key"}
    long = project.prompt(step(bash("seq 100000")))
    looking = project.prompt(step(bash("env; cat /proc/$PPID/environ | tr '\\\\0' '\\\\n'")))
    ends: list[Done] = [
        project.kedge.run(project.prompt(*repair()), "-y", "--json", "--stream", env=env),
        project.kedge.run(long, "-y", env=env),
        # What the caller's own shell has, its commands have: only what Kedge itself keeps is kept from them.
        *([] if is_in_env else [project.kedge.run(looking, "-y", "--json", env=env)]),
    ]
    assert [end.code for end in ends] == [0] * len(ends), ends
    for fault in ({"status": 401}, {"status": 403}, {"status": 400}, {"chunks": 3, "malformed": "error"}):
        prompt = project.prompt()
        project.models.on({**loud, **fault}, prompt=prompt)
        ends.append(project.kedge.run(prompt, "-y", env=env))
        assert ends[-1].code == 1, ends[-1]
    return "".join(end.out + end.err for end in ends)


def listings(project: Project, env: dict[str, str]) -> str:
    """Whatever a client can be told."""
    client, workspace = project.client, project.workspace
    sessions = done(client.get(f"{workspace}/sessions"))["sessions"]
    paths = [
        *("/v1/metrics", "/v1/version", "/v1/workspaces", f"{workspace}/runs", f"{workspace}/config"),
        *(f"{workspace}/log?limit=1000", f"{workspace}/agent", f"{workspace}/jobs"),
        *(f"{workspace}/sessions/{session['id']}/messages" for session in sessions),
    ]
    with client.events(workspace, after=0) as events:
        events.until("caught_up")
    answers = [client.get(path) for path in paths]
    assert [answer.status for answer in answers] == [200] * len(paths)
    told = b"".join(frame.raw for frame in events.frames) + b"".join(answer.body for answer in answers)
    commands = [project.kedge(*words, env=env) for words in (("config", "show"), ("runs",), ("doctor",))]
    return told.decode() + "".join(end.out + end.err for end in commands)
