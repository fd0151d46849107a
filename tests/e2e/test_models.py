"""`kedge models` and `GET W/models` from a shell: what its variables give access to, without its keys leaving it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from kedge.client import AsyncClient, Client
from kedge.protocol.environment import HEADER, encode_environment
from tests.client.command import Kedge
from tests.e2e.home import Home
from tests.server.process import Server

KEY = "planted.key.8d1c"
SHELL = {"KEDGE_MODEL": "", "OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": KEY}


def test_the_list_is_that_of_the_shell_that_asks(kedge: Kedge, server: Server) -> None:
    listed = kedge("models", env=SHELL)
    assert listed.code == 0, listed
    lines = listed.out.splitlines()
    assert lines[0].split() == ["MODEL", "ROLE", "CONTEXT", "OUTPUT", "$", "IN", "$", "OUT", "CAN"]
    (large,) = [line for line in lines if line.startswith("anthropic/claude-sonnet-5-5")]
    assert large.split()[1:] == ["large", "1M", "128k", "2", "10", "tools", "images", "reasoning"]
    assert "  anthropic  ANTHROPIC_API_KEY is set" in lines
    assert any(
        line.split() == ["groq", "set", "GROQ_API_KEY,", "or", "run:", "kedge", "login", "groq"] for line in lines
    )
    assert not any(line.startswith("groq/") for line in lines)
    assert "anthropic/claude-sonnet-5-5" in lines[-1]
    assert KEY not in listed.out + listed.err + server.place.log
    assert KEY not in encode_environment(SHELL)


def test_one_provider_all_of_them_or_only_names(kedge: Kedge) -> None:
    one = kedge("models", "groq", env=SHELL)
    assert [line.split()[0] for line in one.out.splitlines()[1:3]] == [
        "groq/openai/gpt-oss-120b",
        "groq/openai/gpt-oss-20b",
    ]
    assert "GROQ_API_KEY" in one.out
    assert any(line.startswith("xai/") for line in kedge("models", "--all", env=SHELL).out.splitlines())
    found = kedge("models", "--names", env=SHELL).out.split()
    assert "anthropic/claude-sonnet-5-5" in found
    assert all("/" in name for name in found)
    wrong = kedge("models", "grok", env=SHELL)
    assert wrong.code == 2
    assert "'grok'" in wrong.err


def test_a_local_server_is_listed_with_what_it_has(kedge: Kedge, home: Home) -> None:
    env = {**SHELL, "OLLAMA_BASE_URL": home.models.base_url}
    offered = json.loads(kedge("models", "ollama", "--json", env=env).out)
    (ollama,) = offered["providers"]
    assert ollama["usable"]
    assert ollama["models"]
    assert offered["model"] == ollama["models"][0]["name"], "an address that is set comes first"


def test_the_configuration_means_the_shells_home_and_variables_here_too(home: Home, tmp_path: Path) -> None:
    kedge = Kedge(home, tmp_path)
    own = home.config_dir / "kedge" / "config.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    mine = '[providers.mine]\nbase_url = "${MINE_URL}"\napi_key = "${MINE_SECRET}"\n'
    own.write_text(f'trusted = ["~/{kedge.workspace.name}"]\n{mine}')
    (kedge.workspace / "kedge.toml").write_text('[providers.theirs]\nbase_url = "${MINE_URL}"\n')
    shell = {**SHELL, "HOME": str(kedge.workspace.parent), "MINE_URL": home.models.base_url, "MINE_SECRET": KEY}
    listed = kedge("models", env=shell)
    assert listed.code == 0, listed
    for name in ("mine", "theirs"):
        (line,) = [line for line in listed.out.splitlines() if line.startswith(f"  {name} ")]
        assert line.split(maxsplit=1)[1] == f"running at {home.models.base_url}"
    stored = kedge("login", "mine", env=shell, stdin=b"another.planted.key\n")
    assert stored.code == 0, stored.err
    assert "….key" in stored.out
    sources = kedge("login", "--list", env=shell).out.splitlines()
    assert [line.split()[-1] for line in sources if line.startswith("mine")] == ["-", ".key"], (
        "no end of a key that stays in the shell"
    )


async def test_an_asynchronous_program_gets_the_same_list(server: Server, client: Client, tmp_path: Path) -> None:
    async with await AsyncClient.connect(str(tmp_path), host=str(server.unix)) as other:
        offered = await other.models(SHELL)
    assert msgspec.to_builtins(offered) == client.models(SHELL)


def test_the_agents_state_agrees_with_the_list(client: Client) -> None:
    for env in (SHELL, {"GROQ_API_KEY": KEY}, {"KEDGE_MODEL": "xai/grok-4.7"}):
        listed = client.models(env)
        headers = {HEADER: encode_environment(env)}
        state = client.transport.call("GET", f"{client.path}/agent", policy=client.new_policy(), headers=headers)
        assert state["model"] == listed["model"]
        assert state["is_ready"]
    assert client.models()["model"] == "openai/fake-model", "without a word it is the server's own environment"


def test_a_session_has_a_model_of_its_own_until_it_is_cleared(kedge: Kedge) -> None:
    unsaid = {"KEDGE_MODEL": ""}
    assert kedge.run("-q", "Hello.", env=unsaid).code == 0
    session = json.loads(kedge("session", "list", "--json").out)["id"]
    assert kedge("session", "model", session[:8]).code == 0
    chosen = kedge("session", "model", session[:8], "openai/chosen", "--effort", "high")
    assert chosen.out == kedge("session", "model", session).out == f"{session} uses openai/chosen (high).\n"
    assert kedge.run("-q", "-s", session, "Again.", env=unsaid).code == 0
    messages = [json.loads(line) for line in kedge("session", "show", session, "--json").out.splitlines()]
    models = [message["model"] for message in messages if message["role"] == "assistant"]
    assert models[1] == "openai/chosen" != models[0]
    refused = kedge("session", "model", session, "nobody/knows")
    assert (refused.code, refused.out) == (2, "")
    assert "'nobody'" in refused.err
    assert kedge("session", "model", session, "-", "--effort", "-").code == 0
    assert kedge("session", "model", session, "a/b", "c/d").code == 2


def test_the_catalog_is_updated_by_its_user_alone(kedge: Kedge, home: Home, tmp_path: Path) -> None:
    new = {"context_window": 123_000, "input_price": 1.0, "output_price": 2.0}
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"date": "2099-01-01", "vendors": {"anthropic": {"claude-99": new}}, "hosts": {}}))
    assert kedge("models", "update").code == 2, "there is no address unless somebody gives one"
    unasked = kedge("models", "update", "--from", str(given))
    assert unasked.code == 2
    assert "anthropic/claude-99" in unasked.out
    assert "--yes" in unasked.err
    assert "claude-99" not in kedge("models", "--names", env=SHELL).out
    done = kedge("models", "update", "--from", str(given), "-y")
    assert done.code == 0, done
    listed = kedge("models", env=SHELL).out  # by the server that runs
    (line,) = [line for line in listed.splitlines() if line.startswith("anthropic/claude-99")]
    assert line.split()[1:] == ["123k", "-", "1", "2", "tools", "images"]
    assert f"Catalog of 2099-01-01 from {given}" in listed
    assert "Nothing would change" in kedge("models", "update", "--from", str(given)).out
    assert f"model catalog of 2099-01-01 from {given}" in kedge("doctor", "--offline", env=SHELL).out
    assert kedge("models", "update", "--reset").code == 0
    assert "claude-99" not in kedge("models", "--names", env=SHELL).out
    given.write_text("{}")
    refused = kedge("models", "update", "--from", str(given), "-y")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
