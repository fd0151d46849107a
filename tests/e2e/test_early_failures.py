"""A run that fails before a model says a word still has its one end, and so has its client (P2, P8)."""

from __future__ import annotations

import socket

import pytest

from kedge.client import Client
from tests.client.command import Kedge
from tests.e2e.home import asking, log_of
from tests.server.process import Server
from tests.support.invariants import check_all_ended, check_log, ends_of

NOBODY = "http://127.0.0.1:1/simple"
# Not even an index from which the starter could be fetched.
NOTHING = {
    "OPENAI_BASE_URL": "",
    "OPENAI_API_KEY": "",
    "KEDGE_MODEL": "",
    "PIP_INDEX_URL": NOBODY,
    "UV_INDEX_URL": NOBODY,
    "UV_DEFAULT_INDEX": NOBODY,
    "PIP_RETRIES": "0",
}


def nobody_there() -> dict[str, str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return {"OPENAI_BASE_URL": f"http://127.0.0.1:{sock.getsockname()[1]}/v1"}


@pytest.mark.parametrize(
    ("prompt", "env", "code", "words", "told"),
    [
        pytest.param("hello", NOTHING, 2, "connect another model", "no_model", id="no model"),
        pytest.param("hello", {"KEDGE_MODEL": "nobody/knows"}, 2, "'nobody'", "bad_config", id="unknown"),
        pytest.param("hello", {"OPENAI_BASE_URL": "ftp://x"}, 2, "OPENAI_BASE_URL", "bad_config", id="bad address"),
        pytest.param("hello", nobody_there(), 1, "127.0.0.1", "unreachable", id="model down"),
        pytest.param(asking(status=401), {}, 1, "check OPENAI_API_KEY", "auth", id="401"),
        pytest.param(asking(status=403), {}, 1, "check OPENAI_API_KEY", "auth", id="403"),
        pytest.param(asking(status=404), {}, 1, "check the model's name", "model_not_found", id="404"),
        pytest.param(asking(malformed="html"), {}, 1, "127.0.0.1", "bad_response", id="a login page"),
    ],
)
def test_a_failure_before_the_first_word_ends_the_run_and_the_client(
    kedge: Kedge, client: Client, server: Server, prompt: str, env: dict[str, str], code: int, words: str, told: str
) -> None:
    session_id = client.create_session()["id"]
    failed = kedge.run("-s", session_id, prompt, "--run-id", "a", "-q", env=env)
    assert (failed.code, failed.out, failed.err.count("\n")) == (code, "", 1), failed
    assert words in failed.err
    assert "key-for-tests" not in failed.err
    next_one = kedge.run("-s", session_id, asking(text="the next one"), "-q")
    assert (next_one.code, next_one.out) == (0, "the next one\n"), "nothing is stranded behind a failure"
    log = log_of(server.client, server.client.workspace(kedge.workspace))
    check_log(log)
    check_all_ended(log)
    assert ends_of(log)["a"].code == told
