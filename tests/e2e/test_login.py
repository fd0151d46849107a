"""`kedge login` and `logout` as people and scripts use them; and that no key is found anywhere but where it is kept."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import LIMIT_S, Done, Kedge
from tests.e2e.home import Home, log_of
from tests.server.client import Client, done
from tests.support.keyrings import PLACE
from tests.support.model_control import ModelControl
from tests.support.model_server import HOST

RIGHT, NEXT, WRONG = "right.planted.key.0001", "next.planted.key.0002", "wrong.planted.key.0003"
SECRETS = (RIGHT, NEXT, WRONG)


class Keyless(Home):
    """A home whose shells have no key."""

    @property
    def env(self) -> dict[str, str]:
        without = {name: value for name, value in super().env.items() if name != "OPENAI_API_KEY"}
        return {**without, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}


@pytest.fixture
def home(model_control: ModelControl, tmp_path_factory: pytest.TempPathFactory) -> Generator[Keyless]:
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="kedge-t-"))
    model_control.accept_keys(RIGHT)
    home = Keyless(directory, model_control, has_titles=False)
    try:
        yield home
    finally:
        Kedge(home, directory).end_server()
        shutil.rmtree(directory)


@pytest.fixture
def kedge(home: Keyless, tmp_path: Path) -> Kedge:
    return Kedge(home, tmp_path)


def log_in(kedge: Kedge, key: str, *args: str, **options: Any) -> Done:
    return kedge("login", *(args or ("openai",)), stdin=f"{key}\n".encode(), **options)


def stored(home: Keyless) -> Any:
    path = home.data_dir / "credentials.json"
    assert path.stat().st_mode & 0o777 == 0o600
    return {name: entry.get("api_key") for name, entry in json.loads(path.read_text())["providers"].items()}


def test_a_key_is_checked_stored_used_listed_and_forgotten(home: Keyless, kedge: Kedge) -> None:
    refused = log_in(kedge, WRONG)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == f"kedge: {HOST}:{home.models.port} rejected the key. It was not saved; copy it again\n"
    assert not (home.data_dir / "credentials.json").exists()
    taken = log_in(kedge, RIGHT)
    assert (taken.code, taken.err) == (0, "")
    assert "…0001" in taken.out
    assert stored(home) == {"openai": RIGHT}
    assert kedge.run("-q", "Hello.").out == "FAKE-ANSWER-OK\n"
    listed = kedge("login", "--list")
    assert [line.split() for line in listed.out.splitlines()] == [
        ["PROVIDER", "KEY", "FROM", "ENDS", "IN"],
        ["openai", "login", "(file)", "0001"],
    ]
    assert "openai" in kedge("logout").out
    assert stored(home) == {}
    for command in (("logout",), ("login", "--list")):
        empty = kedge(*command)
        assert (empty.code, empty.out, empty.err.count("\n")) == (0, "", 1), empty


def test_a_refused_key_names_the_way_out_in_one_line(home: Keyless, kedge: Kedge) -> None:
    assert log_in(kedge, WRONG, "openai", "--no-check", "--json").out.startswith('{"provider_id": "openai"')
    failed = kedge.run("-q", "Hello.")
    assert (failed.code, failed.out, failed.err.count("\n")) == (1, "", 1)
    assert failed.err.endswith("check OPENAI_API_KEY, or run: kedge login openai\n")
    assert log_in(kedge, RIGHT).code == 0
    assert kedge.run("-q", "Hello.").code == 0, "from the next call on, without a restart"


def test_a_provider_that_is_not_there_stores_nothing(home: Keyless, kedge: Kedge) -> None:
    nobody = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    failed = log_in(kedge, RIGHT, env=nobody)
    assert (failed.code, failed.out, failed.err.count("\n")) == (3, "", 1)
    assert "--no-check" in failed.err
    assert not (home.data_dir / "credentials.json").exists()
    assert log_in(kedge, RIGHT, "openai", "--no-check", env=nobody).code == 0


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ([WRONG.upper()], "shell history"),
        (["sk-wrong"], "shell history"),
        (["openai", WRONG], "one provider"),
        (["nobody"], "anthropic, "),
        ([], "kedge login PROVIDER"),
    ],
)
def test_what_is_no_provider_is_wrong_usage_and_repeated_nowhere(kedge: Kedge, args: list[str], hint: str) -> None:
    wrong = kedge("login", *args, stdin=b"\n")
    assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)
    assert hint in wrong.err
    assert WRONG.upper() not in wrong.err
    assert WRONG not in wrong.err


@pytest.mark.parametrize(
    ("key", "hint"),
    [(b"", "No API key"), (b" \n", "No API key"), (b"x" * 70_000, "too long"), (b"a b\n", "characters")],
)
def test_what_is_no_key_is_told(kedge: Kedge, key: bytes, hint: str) -> None:
    wrong = kedge("login", "openai", "--key-stdin", stdin=key)
    assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)
    assert hint in wrong.err


def test_logging_out_names_one_of_several(home: Keyless, kedge: Kedge) -> None:
    for provider in ("openai", "anthropic", "groq"):
        assert log_in(kedge, RIGHT, provider, "--no-check").code == 0
    vague = kedge("logout")
    assert (vague.code, "(openai, anthropic, groq)" in vague.err) == (2, True)
    unknown = kedge("logout", "mistral")
    assert (unknown.code, "'mistral'" in unknown.err) == (2, True)
    assert kedge("logout", "groq").code == 0
    assert list(stored(home)) == ["openai", "anthropic"]
    assert kedge("logout", "--all").code == 0
    assert stored(home) == {}


def test_a_variable_that_comes_first_is_pointed_out(kedge: Kedge) -> None:
    taken = log_in(kedge, RIGHT, env={"OPENAI_API_KEY": WRONG})
    assert taken.code == 0
    assert "OPENAI_API_KEY" in taken.err


def test_on_a_terminal_the_provider_is_chosen_and_the_key_is_not_shown(home: Keyless, kedge: Kedge) -> None:
    shown = on_a_terminal(kedge, [(b"Provider: ", b"1\n"), (b"(not shown): ", f"{RIGHT}\n".encode())])
    assert b"  1  openai       OpenAI\r\n" in shown
    assert b"Stored the API key" in shown
    assert RIGHT.encode() not in shown
    assert stored(home) == {"openai": RIGHT}


def on_a_terminal(kedge: Kedge, talk: list[tuple[bytes, bytes]]) -> bytes:
    """Everything that appears on a terminal where somebody answers."""
    controller, terminal = pty.openpty()

    def own_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "kedge", "login"],
        cwd=kedge.workspace,
        env=kedge.place.env,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=own_the_terminal,
    )
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(controller, 65536):
            shown += piece
            if talk and shown.endswith(talk[0][0]):
                os.write(controller, talk.pop(0)[1])
    except OSError:
        pass  # how Linux says that the last one has closed the terminal
    os.close(controller)
    assert process.wait(LIMIT_S) == 0, shown
    return shown


def test_a_key_can_be_kept_in_the_keyring_of_the_system(home: Keyless, kedge: Kedge) -> None:
    ring = home.directory / "ring.json"
    env = {
        "PYTHON_KEYRING_BACKEND": "tests.support.keyrings.FileKeyring",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        PLACE: str(ring),
        "KEDGE_CREDENTIALS__STORE": "keyring",
    }
    taken = log_in(kedge, RIGHT, env=env)  # which also starts the server, with these variables
    assert taken.code == 0, taken
    assert "keyring" in taken.out
    assert stored(home) == {"openai": None}
    assert RIGHT not in (home.data_dir / "credentials.json").read_text()
    assert json.loads(ring.read_text()) == {"kedge/openai": RIGHT}
    assert kedge.run("-q", "Hello.").out == "FAKE-ANSWER-OK\n"
    assert kedge("logout", "openai").code == 0
    assert json.loads(ring.read_text()) == {}


def test_a_machine_without_a_keyring_says_so_and_stores_nothing(home: Keyless, kedge: Kedge) -> None:
    failed = log_in(kedge, RIGHT, env={"KEDGE_CREDENTIALS__STORE": "keyring"})
    assert (failed.code, failed.err.count("\n")) == (2, 1)
    assert 'set credentials.store = "file"' in failed.err
    assert not (home.data_dir / "credentials.json").exists()


def test_over_http_a_run_waits_for_the_login_and_no_key_is_found_anywhere(home: Keyless, kedge: Kedge) -> None:
    assert log_in(kedge, WRONG, "openai", "--no-check").code == 0
    (socket,) = (home.runtime_dir / "kedge").glob("*.sock")
    client = Client(f"unix://{socket}")
    workspace = client.workspace(kedge.workspace)
    session_id = client.session(workspace)
    printed = [log_in(kedge, NEXT), kedge.run("-q", "Hello."), kedge("login", "--list", "--json"), kedge("doctor")]
    with client.events(workspace) as events:
        run_id = client.submit(workspace, session_id, "Hello.", env={**home.env})
        events.until(lambda event: getattr(event.payload, "type", "") == "re_authenticate")
        base_url = home.models.base_url
        body = {"provider_id": "openai", "api_key": NEXT, "base_url": base_url}
        refused = client.post("/v1/credentials", body)
        assert (refused.status, refused.code) == (422, "key_refused")
        assert done(client.post("/v1/credentials", {**body, "api_key": RIGHT})) == {
            "provider_id": "openai",
            "stored_in": "file",
            "last_four": "0001",
        }
        events.end_of(run_id)
    assert client.ended(workspace, run_id)["state"] == "completed"
    listed = client.get("/v1/credentials")
    assert done(listed)["credentials"] == [
        {
            "provider_id": "openai",
            "source": "login",
            "is_used": True,
            "last_four": "0001",
            "stored_in": "file",
            "variable": None,
        }
    ]
    unknown = client.ask("DELETE", f"/v1/credentials/{WRONG}")
    assert (unknown.status, unknown.code) == (404, "login_not_found")
    log_of(client, workspace)
    told = b"".join(frame.raw for frame in events.frames) + listed.body + refused.body
    paths = ("/v1/metrics", f"{workspace}/runs", f"{workspace}/config", f"{workspace}/log?limit=1000")
    told += b"".join(client.get(path).body for path in paths)
    said = told.decode() + "".join(end.out + end.err for end in printed)
    kedge.end_server()
    written = [path for path in home.directory.rglob("*") if path.is_file() and path.name != "credentials.json"]
    assert {"server.log", "kedge.db"} <= {path.name for path in written}
    for secret in SECRETS:
        assert secret not in said
        assert [path for path in written if secret.encode() in path.read_bytes()] == []
    kept = (home.data_dir / "credentials.json").read_text()
    assert (RIGHT in kept, NEXT in kept, WRONG in kept) == (True, False, False)
