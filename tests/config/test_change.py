"""Changing a file for somebody: checked first, written whole, and never with a secret in it."""

from __future__ import annotations

import stat
import threading
import tomllib
from pathlib import Path

import pytest

from kedge.config.change import add_rules, parse_value, remove_from_file, set_in_file, trust, untrust
from kedge.config.errors import BadConfig, CannotSet
from tests.config.home import Home


def test_a_file_that_is_not_there_is_made_with_its_directory(home: Home) -> None:
    set_in_file(home.user, "model", "a/b")
    assert home.user.read_text() == 'model = "a/b"\n'
    assert home.load().config.model == "a/b"


def test_a_rule_that_names_a_variable_is_judged_when_it_is_known(home: Home) -> None:
    set_in_file(home.user, "permissions.allow", ["edit(${HOME}/x)", "bash(echo ${WHO})"])
    assert home.load(WHO="me").config.permissions.allow[1] == "bash(echo me)"
    with pytest.raises(BadConfig) as caught:
        home.load(WHO="'")
    assert "a quote (') is not closed" in caught.value.message


def test_a_file_keeps_its_mode_its_mark_and_its_link(home: Home, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "kedge.toml"
    home.write(real, "")
    real.write_bytes(b"\xef\xbb\xbf# mine\r\nagent.titles = true # yes\r\n")
    real.chmod(0o640)
    home.user.parent.mkdir(parents=True)
    home.user.symlink_to(real)
    set_in_file(home.user, "agent.titles", False)
    assert real.read_bytes() == b"\xef\xbb\xbf# mine\r\nagent.titles = false # yes\r\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert home.user.is_symlink()
    assert list(real.parent.iterdir()) == [real]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("modle", "x", "did you mean model?"),
        ("agent", 1, "max_steps"),
        ("providers", 1, "providers.NAME"),
        ("agent.max_steps", 0, "at least 1"),
        ("agent.max_steps", True, "at least 1"),
        ("permissions.mode", "yolp", 'did you mean "yolo"?'),
        ("permissions.allow", ["bash(x"], '"bash(x"'),
        ("permissions.deny", ["view", "edit(${HOME}/x)", "sbah(ls)"], "'sbah'"),
        ("a..b", 1, "agent.max_steps"),
        ("", 1, "agent.max_steps"),
        ("model = 1 #", 1, "agent.max_steps"),
        ("model\nx", 1, "agent.max_steps"),
        ("model", "half \ud800 pair", "Unicode"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(home: Home, key: str, value: object, why: str) -> None:
    with pytest.raises(CannotSet) as caught:
        set_in_file(home.user, key, value)
    assert why in caught.value.message
    assert not home.user.exists()


@pytest.mark.parametrize(
    "key", ["providers.x.api_key", "providers.x.headers.Authorization", "providers.x.headers.x-api-key"]
)
def test_a_secret_does_not_get_into_a_file(home: Home, key: str) -> None:
    for secret in ("sk-123456789", "${KEY}x", "x${KEY}", "${KEY:-sk-123456789}", "Bearer sk-12345"):
        with pytest.raises(CannotSet) as caught:
            set_in_file(home.user, key, secret)
        assert "${NAME}" in caught.value.message
        assert "sk-1" not in caught.value.message
    assert ("api_key_command" in caught.value.message) == key.endswith(".api_key")
    set_in_file(home.user, key, "${KEY}")
    assert not home.user.read_text().count("sk-")


def test_a_file_that_is_broken_is_not_touched(home: Home) -> None:
    home.write(home.user, "model = \n")
    with pytest.raises(BadConfig):
        set_in_file(home.user, "model", "a/b")
    assert home.user.read_text() == "model = \n"


def test_another_mistake_in_the_file_does_not_keep_one_from_mending_it(home: Home) -> None:
    home.write(home.user, "modle = 1\nagent.max_steps = 'x'\n")
    set_in_file(home.user, "agent.max_steps", 3)
    assert home.user.read_text() == "modle = 1\nagent.max_steps = 3\n"


def test_what_is_not_there_can_be_removed(home: Home) -> None:
    remove_from_file(home.user, "model")
    assert not home.user.exists()
    home.write(home.user, "# mine\n")
    remove_from_file(home.user, "providers.x.api_key")
    assert home.user.read_text() == "# mine\n"
    with pytest.raises(CannotSet, match="did you mean model"):
        remove_from_file(home.user, "modle")


def test_a_whole_table_can_be_removed(home: Home) -> None:
    home.write(
        home.user, "[providers.x]\nwire = 'chat'\n[providers.y]\nwire = 'chat'\n[providers.x.headers]\na = 'b'\n"
    )
    remove_from_file(home.user, "providers.x")
    assert home.user.read_text() == "[providers.y]\nwire = 'chat'\n"


def test_a_directory_that_cannot_be_written_is_one_line(home: Home) -> None:
    home.write(home.user.parent, "")  # a file where a directory should be
    with pytest.raises(CannotSet, match=r"cannot be written: (Not a directory|File exists)"):
        set_in_file(home.user, "model", "a/b")


def test_two_that_change_a_file_at_once_both_get_their_way(home: Home) -> None:
    keys = [f"providers.p{number}.base_url" for number in range(12)]
    threads = [threading.Thread(target=set_in_file, args=(home.user, key, "http://x")) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tomllib.loads(home.user.read_text())["providers"]) == len(keys)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("model", "true", "true"),
        ("model", "a/b", "a/b"),
        ("permissions.mode", "plan", "plan"),
        ("agent.max_steps", "3", 3),
        ("agent.max_cost", "0.5", 0.5),
        ("agent.titles", "false", False),
        ("permissions.deny", '["a", "b"]', ["a", "b"]),
        ("providers.x.extra_body.n", "1", 1),
        ("providers.x.extra_body.n", "word", "word"),
        ("providers.x.extra_body.n", "{ a = 1 }", {"a": 1}),
        ("agent.max_steps", "3\nmodel = 1", "3\nmodel = 1"),
    ],
)
def test_what_a_person_types_is_read_by_the_type_of_the_key(key: str, text: str, value: object) -> None:
    assert parse_value(key, text) == value


def test_a_list_must_be_typed_as_one() -> None:
    with pytest.raises(CannotSet, match=r"like '\[\"one\", \"two\"\]'"):
        parse_value("permissions.deny", "a, b")


def test_trust_is_given_and_taken(home: Home) -> None:
    home.write(home.user, "# mine\ntrusted = ['~/other']\n")
    assert trust(home.user, home.workspace)
    assert not trust(home.user, home.workspace)
    assert home.user.read_text() == f'# mine\ntrusted = ["~/other", "{home.workspace}"]\n'
    user = Path(home.env["HOME"])
    assert untrust(home.user, user / "other", user)
    assert untrust(home.user, home.workspace, user)
    assert not untrust(home.user, home.workspace, user)
    assert home.user.read_text() == "# mine\ntrusted = []\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[permissions]\nallow = ["bash(make)", "edit(/a b)"]\n'),
        ("[permissions]\nallow = []  # none\n", '[permissions]\nallow = ["bash(make)", "edit(/a b)"]  # none\n'),
        ("permissions.allow = [ 'view', ]\n", 'permissions.allow = [\'view\', "bash(make)", "edit(/a b)"]\n'),
        (
            "permissions.allow = [\n  'view', # all\n  # y\n  'bash(x)'\n]\n",
            "permissions.allow = [\n  \"bash(make)\",\n  \"edit(/a b)\",\n  'view', # all\n  # y\n  'bash(x)'\n]\n",
        ),
        ("permissions = { allow = ['view'] }\n", 'permissions = { allow = [\'view\', "bash(make)", "edit(/a b)"] }\n'),
        (
            "[permissions]\nallow = ['edit(/a b)', 'bash(make)']\n",
            "[permissions]\nallow = ['edit(/a b)', 'bash(make)']\n",
        ),
    ],
)
def test_rules_are_added_to_a_list_whose_comments_stay(home: Home, before: str, after: str) -> None:
    home.write(home.user, before)
    for _ in range(2):  # the second time they are there
        add_rules(home.user, "allow", ["bash(make)", "edit(/a b)"])
        assert home.user.read_text() == after


def test_a_rule_is_written_so_that_it_is_read_back_as_it_was(home: Home) -> None:
    rules = ["bash(echo '${HOME}' '$$')", "bash(echo '$x' \"it's\")", "edit(/tmp/\\*)"]
    add_rules(home.user, "allow", rules)
    assert list(home.load().config.permissions.allow) == rules


@pytest.mark.parametrize("text", ["model = \n", "permissions = 3\n", "permissions.allow = 3\n"])
def test_rules_are_not_added_to_a_file_with_a_mistake(home: Home, text: str) -> None:
    home.write(home.user, text)
    with pytest.raises((BadConfig, CannotSet)):
        add_rules(home.user, "allow", ["bash(make)"])
    assert home.user.read_text() == text
    with pytest.raises(CannotSet):
        add_rules(home.user.parent / "other.toml", "allow", ["bash(make"])
