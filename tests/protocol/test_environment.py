"""A shell's environment in a header: enough to know what it can use, and no secret."""

from __future__ import annotations

from kedge.protocol.environment import HEADER, WITHHELD, decode_environment, encode_environment

SHELL = {
    "OPENAI_API_KEY": "planted-key",
    "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1",
    "AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com",
    "MISTRAL_BASE_URL": "http://me:planted-password@host/v1",
    "KEDGE_MODEL": "openrouter/~anthropic/claude & more=1",
    "KEDGE_SMALL_MODEL": "vertex/claude-haiku@20251001",
    "KEDGE_OWN_API_KEY": "planted-key-of-a-provider",
    "KEDGE_TOKEN": "planted-token",
    "HOME": "/somewhere/mine",
    "COMPANY_URL": "https://llm.company.test",
    "DATABASE_URL": "postgres://me:planted-password@db/x",
    "HTTPS_PROXY": "http://me:planted-password@proxy",
    "SSL_CERT_FILE": "/a.pem",
    "EMPTY": " ",
    "ODD NAME&x": "planted-odd",
}


def test_a_key_is_known_to_be_there_and_does_not_leave_the_shell() -> None:
    told = encode_environment(SHELL)
    assert "planted" not in told
    assert told.isascii()
    assert told.isprintable()
    env = decode_environment({HEADER.lower(): told})
    assert env is not None
    assert env["OPENAI_API_KEY"] == WITHHELD
    assert env["ODD NAME&x"] == WITHHELD


def test_what_says_which_model_and_where_is_told_as_it_is() -> None:
    env = decode_environment({HEADER.lower(): encode_environment(SHELL)})
    assert env is not None
    for name in ("OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT", "COMPANY_URL", "HOME", "KEDGE_MODEL", "KEDGE_SMALL_MODEL"):
        assert env[name] == SHELL[name]
    assert env["MISTRAL_BASE_URL"] == WITHHELD, "an address may hold a password"


def test_the_way_out_the_way_in_and_what_is_empty_are_left_out() -> None:
    env = decode_environment({HEADER.lower(): encode_environment(SHELL)})
    assert env is not None
    assert not {"HTTPS_PROXY", "SSL_CERT_FILE", "KEDGE_TOKEN", "EMPTY"} & set(env)


def test_who_says_nothing_means_the_servers_own() -> None:
    assert decode_environment({}) is None
    assert decode_environment({HEADER.lower(): ""}) == {}
