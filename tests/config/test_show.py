"""What people are shown: each value, where it comes from, and no secret."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.config.show import describe_config, mask, strip_credentials
from tests.config.home import Home


def shown(home: Home, key: str | None = None, **env: str) -> dict[str, Any]:
    return {row.key: row.value for row in describe_config(home.load(**env), key).values}


def test_every_value_is_shown_with_where_it_comes_from(home: Home) -> None:
    home.write(home.user, "\nmodel = 'a/b'\n[providers.'x.y'.models.m]\ntools = false\n")
    rows = {row.key: row for row in describe_config(home.load(KEDGE_AGENT__MAX_STEPS="3")).values}
    model, steps, titles = rows["model"], rows["agent.max_steps"], rows["agent.titles"]
    assert (model.value, model.layer, model.name, model.line) == ("a/b", "user", str(home.user), 2)
    assert (steps.value, steps.layer, steps.name) == (3, "environment", "KEDGE_AGENT__MAX_STEPS")
    assert (titles.value, titles.layer, titles.name, titles.line) == (True, "default", None, None)
    assert rows['providers."x.y".models.m.tools'].value is False


def test_a_value_that_is_set_to_its_default_is_shown_as_set(home: Home) -> None:
    home.write(home.user, "agent.max_steps = 200\n")
    (row,) = describe_config(home.load(), "agent.max_steps").values
    assert (row.value, row.layer, row.line) == (200, "user", 1)


def test_one_key_can_be_shown_with_all_below_it(home: Home) -> None:
    assert list(shown(home, "permissions")) == [
        *("permissions.mode", "permissions.allow", "permissions.deny", "permissions.unapproved")
    ]
    assert list(shown(home, "permissions.mode")) == ["permissions.mode"]
    assert shown(home, "perm") == {}


def test_no_secret_is_shown(home: Home) -> None:
    home.write(
        home.user,
        """\
        [providers.x]
        api_key = "${KEY}"
        base_url = "https://user:planted-pass@example.com/v1?key=planted-query"
        headers = { Authorization = "Bearer ${KEY}", x = "planted-header" }
        extra_body = { password = "planted-body", deep.api_token = ["planted-list"], other = "${KEY}", fine = "shown" }
        """,
    )
    text = str(describe_config(home.load(KEY="planted-key-0000abcd")))
    assert "planted" not in text
    assert "…abcd" in text
    assert "https://…@example.com/v1?…" in text
    assert "shown" in text


@pytest.mark.parametrize(
    ("secret", "kept"), [("", "…"), ("abcd", "…"), ("0123456789a", "…"), ("0123456789ab", "…89ab")]
)
def test_of_a_short_secret_nothing_is_shown(secret: str, kept: str) -> None:
    assert mask(secret) == kept


def test_an_address_that_is_none_is_hidden() -> None:
    assert strip_credentials("http://[bad:pass@x") == "http://…"
