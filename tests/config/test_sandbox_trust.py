"""A repository may narrow what holds its commands, and no file that a held command can write may widen it."""

from __future__ import annotations

import pytest

from tests.config.home import Home


def test_a_repository_may_ask_for_a_sandbox(home: Home) -> None:
    home.write(home.inner, "sandbox.mode = 'auto'\nsandbox.network = false\nsandbox.hidden = ['secrets']\n")
    loaded = home.load()
    assert loaded.ignored == ()
    assert (loaded.config.sandbox.mode, loaded.config.sandbox.network) == ("auto", False)
    assert loaded.config.sandbox.hidden == ("secrets",)


def test_what_is_hidden_is_added_up(home: Home) -> None:
    home.write(home.user, "sandbox.hidden = ['~/a']\n")
    home.write(home.inner, "sandbox.hidden = ['b']\n")
    assert home.load().config.sandbox.hidden == ("~/a", "b")


@pytest.mark.parametrize(
    "line",
    [
        "sandbox.mode = 'off'",
        "sandbox.mode = 'landlock'",
        "sandbox.network = true",
        "sandbox.unix_sockets = true",
        "sandbox.ask = false",
        "sandbox.writable = ['/']",
        "sandbox.readable = ['~/.ssh']",
    ],
)
@pytest.mark.parametrize("is_trusted", [True, False])
def test_no_workspace_widens_the_users_sandbox(home: Home, line: str, is_trusted: bool) -> None:
    users = "sandbox = { mode = 'bubblewrap', network = false }\n"
    home.write(home.user, users + (f"trusted = ['{home.inner.parent}']\n" if is_trusted else ""))
    before = home.load().config.sandbox
    home.write(home.inner, f"{line}\n")
    loaded = home.load()
    assert loaded.config.sandbox == before
    assert [each.key for each in loaded.ignored] == [line.partition(" ")[0]]
    assert "kedge config trust" not in loaded.ignored[0].why, "trust does not help while the sandbox is on"


def test_a_trusted_directory_is_not_one_while_its_commands_are_held(home: Home) -> None:
    """They could write `kedge.toml`, and have its key command run outside."""
    trusted = f"trusted = ['{home.inner.parent}']\n"
    home.write(home.inner, "providers.x.api_key_command = 'sh evil'\npermissions.allow = ['bash']\n")
    home.write(home.user, trusted)
    assert home.load().config.permissions.allow == ("bash",)
    from_variable = home.load(KEDGE_SANDBOX__MODE="auto")
    home.write(home.user, f"sandbox.mode = 'auto'\n{trusted}")
    from_file = home.load()
    for loaded in (from_variable, from_file, home.load(KEDGE_SANDBOX__MODE="off")):
        assert loaded.config.permissions.allow == ()
        assert loaded.config.providers == {}
        assert not any(file.trusted for file in loaded.files if file.layer == "workspace")
