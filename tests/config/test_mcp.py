"""MCP servers in the configuration: what is accepted, what replaces what, and what a repository's files may do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.config.errors import BadConfig
from kedge.config.mcp import InvalidServer, expand_server
from kedge.config.show import describe_config
from tests.config.home import Home

MISTAKES = [
    ("command = 'a'\nurl = 'https://a.example'", "both command and url"),
    ("enabled = true", "needs command"),
    ("command = ' '", "is empty"),
    ("command = 'a'\nheaders = { x = 'y' }", "headers"),
    ("command = 'a'\noauth.client_id = 'y'", "oauth"),
    ("url = 'https://a.example'\nargs = ['x']", "args"),
    ("url = 'ftp://a.example'", "http(s)"),
    ("url = 'https://user:pass@a.example'", "password"),
    ("url = 'https://a.example:99999'", "address"),
    ("comand = 'a'", "did you mean"),
    ("command = 'a'\ntimeout_s = 0", "above 0"),
    ("command = 'a'\nenv = { X = 1 }", "a string"),
]


@pytest.mark.parametrize(("lines", "reason"), MISTAKES)
def test_a_mistake_names_the_file_the_line_and_what_is_expected(home: Home, lines: str, reason: str) -> None:
    home.write(home.user, f"[mcp.one]\n{lines}\n")
    with pytest.raises(BadConfig) as raised:
        home.load()
    (problem,) = raised.value.problems
    assert problem.where == str(home.user)
    assert problem.line >= 1
    assert problem.key.startswith("mcp.one")
    assert reason in str(problem)
    assert "pass" not in str(problem).replace("password", "")


@pytest.mark.parametrize("name", ["-x", "a.b", "a b", "", "x" * 33, "ä", "__x"])
def test_a_name_must_fit_into_the_name_of_a_tool(home: Home, name: str) -> None:
    home.write(home.user, f"[mcp.{json.dumps(name, ensure_ascii=False)}]\ncommand = 'x'\n")
    with pytest.raises(BadConfig, match="letters"):
        home.load()


def test_references_are_expanded_when_a_server_is_started_and_cost_only_that_server(home: Home) -> None:
    home.write(
        home.user,
        """\
        [mcp.one]
        command = "${TOOLS:-/opt}/server"
        args = ["--root=$$HOME", "${MISSING}"]
        [mcp.two]
        url = "${ADDRESS}"
        headers = { Authorization = "Bearer ${TOKEN}" }
        """,
    )
    servers = home.load().config.mcp
    with pytest.raises(InvalidServer, match="args: the variable MISSING is not set"):
        expand_server(servers["one"], {})
    one = expand_server(servers["one"], {"MISSING": "there"})
    assert (one.command, one.args) == ("/opt/server", ("--root=$HOME", "there"))
    two = expand_server(servers["two"], {"ADDRESS": "https://a.example/mcp", "TOKEN": "s3cret"})
    assert (two.url, two.headers) == ("https://a.example/mcp", {"Authorization": "Bearer s3cret"})
    assert "s3cret" not in repr(two)
    with pytest.raises(InvalidServer, match="url"):
        expand_server(servers["two"], {"ADDRESS": "file:///etc/passwd", "TOKEN": "s3cret"})


def test_another_address_gets_nothing_that_was_meant_for_the_first(home: Home) -> None:
    home.write(
        home.user,
        f"trusted = ['{home.repository}']\n[mcp.one]\nurl = 'https://a.example'\nheaders = {{ Authorization = 'x' }}\n",
    )
    home.write(home.outer, "[mcp.one]\nenabled = false\n")
    assert home.load().config.mcp["one"].headers == {"Authorization": "x"}
    assert not home.load().config.mcp["one"].enabled
    home.write(home.inner, "[mcp.one]\nurl = 'https://b.example'\n")
    one = home.load().config.mcp["one"]
    assert (one.url, one.headers, one.enabled) == ("https://b.example", {}, True)


@pytest.mark.parametrize("line", ["mcp.one = {}", "[mcp.one]", "mcp.one.env = {}", "mcp.one.command = 'x'"])
def test_an_untrusted_repository_neither_adds_nor_breaks_servers(home: Home, line: str) -> None:
    home.write(home.inner, f"{line}\n")
    loaded = home.load()
    assert loaded.config.mcp == {}
    assert [each.key.startswith("mcp.one") for each in loaded.ignored] == [True]


def write_json(home: Home, servers: Any) -> None:
    home.workspace.joinpath(".mcp.json").write_text(json.dumps({"mcpServers": servers}))


CLAUDE = {
    "files": {"command": "npx", "args": ["-y", "server", "${ROOT:-/data}", "costs $$5"], "env": {"A": "${B}"}},
    "remote": {
        "type": "http",
        "url": "https://${HOST:-a.example}/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}"},
        "timeout": 5000,
        "oauth": {"clientId": "c-1", "callbackPort": 1},
    },
    "old": {"type": "sse", "url": "https://b.example/sse", "disabled": True},
}


def test_mcp_json_is_read_where_the_directory_is_trusted(home: Home) -> None:
    write_json(home, CLAUDE)
    loaded = home.load()
    assert loaded.config.mcp == {}
    assert [(each.file, "config trust" in each.why) for each in loaded.ignored] == [
        (str(home.workspace / ".mcp.json"), True)
    ]
    home.trust(home.repository)
    loaded = home.load()
    assert loaded.ignored == ()
    files = expand_server(loaded.config.mcp["files"], {"B": "b"})
    assert (files.command, files.args) == ("npx", ("-y", "server", "/data", "costs $$5"))
    assert files.env == {"A": "b"}
    remote = expand_server(loaded.config.mcp["remote"], {"TOKEN": "t"})
    assert (remote.url, remote.timeout_s, remote.oauth.client_id) == ("https://a.example/mcp", 5, "c-1")
    assert remote.headers == {"Authorization": "Bearer t"}
    assert not loaded.config.mcp["old"].enabled


def test_the_kedge_toml_of_the_same_directory_wins_over_mcp_json_and_that_over_the_users_file(home: Home) -> None:
    home.write(home.user, f"trusted = ['{home.repository}']\nmcp.a.command = 'user'\nmcp.b.command = 'user'\n")
    write_json(home, {"a": {"command": "json"}, "b": {"command": "json"}})
    home.write(home.inner, "mcp.a.command = 'toml'\n")
    servers = home.load().config.mcp
    assert (servers["a"].command, servers["b"].command) == ("toml", "json")


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"mcpServers": []}',
        b"[" * 100_000,
        b'{"mcpServers": {"bad": 1, "worse": {}}}',
        b'{"mcpServers": {"a.b": {"command": "x"}, "c": {"type": "ws", "url": "wss://x"}}}',
        b'{"mcpServers": {"x": {"command": ["a"]}, "y": {"command": "a", "args": "b"}}}',
        b"x" * 300_000,
    ],
)
def test_a_broken_mcp_json_is_reported_and_loses_nothing(home: Home, content: bytes) -> None:
    home.write(home.user, f"trusted = ['{home.repository}']\nmodel = 'a/b'\nmcp.mine.command = 'x'\n")
    (home.workspace / ".mcp.json").write_bytes(content)
    loaded = home.load()
    assert list(loaded.config.mcp) == ["mine"]
    assert loaded.config.model == "a/b"
    assert loaded.ignored
    assert {each.file for each in loaded.ignored} == {str(home.workspace / ".mcp.json")}
    assert all("\n" not in each.why for each in loaded.ignored)
    assert describe_config(loaded, "mcp").ignored


def test_one_unusable_server_of_mcp_json_does_not_cost_the_others(home: Home) -> None:
    home.trust(home.repository)
    write_json(home, {"good": {"command": "x"}, "bad": {"command": "x", "url": "https://a.example", "type": "ws"}})
    loaded = home.load()
    assert list(loaded.config.mcp) == ["good"]
    assert [each.key for each in loaded.ignored] == ["mcp.bad"]


def test_a_change_of_mcp_json_is_a_change_of_the_configuration(home: Home) -> None:
    before = home.loader.state(home.workspace)
    write_json(home, CLAUDE)
    assert home.loader.state(home.workspace) != before


def test_secrets_of_servers_are_not_shown(home: Home) -> None:
    home.write(
        home.user,
        """\
        [mcp.one]
        command = "x"
        args = ["--token", "planted-1", "--api-key=planted-2", "-v", "https://u:planted-3@a.example", "${KEY}"]
        env = { A = "planted-4", B = "${B}" }
        [mcp.two]
        url = "https://a.example/mcp?key=planted-5"
        headers = { X = "planted-6", Authorization = "Bearer ${TOKEN}" }
        oauth = { client_id = "c", client_secret = "planted-7" }
        """,
    )
    text = str(describe_config(home.load(), "mcp"))
    assert "planted" not in text
    assert all(shown in text for shown in ("${B}", "Bearer ${TOKEN}", "${KEY}", "-v", "--token"))
