"""Finds secrets in settings of other agents, and puts `${VARIABLE}` in their place."""

from __future__ import annotations

import re
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from kedge.config.change import SECRET_NAME

_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*(?::-[^{}]*)?\}")
_TOKEN = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|github_pat|glpat|xox[a-z]|AKIA|AIza|hf|npm|pypi|tvly|ctx7sk|eyJ)[-_A-Za-z0-9]{12,}"
)
_SECRET_VALUE = re.compile(
    rf"{_TOKEN.pattern}|\b(?=[A-Za-z0-9_+/=-]*[0-9])(?=[A-Za-z0-9_+/=-]*[A-Za-z])[A-Za-z0-9_+/=-]{{32,}}"
)
_SHORT_NAME = re.compile(r"(?:^|[_-])(?:pass|pwd?|pat|dsn)(?:$|[_-])", re.IGNORECASE)
_NO_SECRET = re.compile(r"true|false|yes|no|none|null|\d{1,6}", re.IGNORECASE)
_SCHEME = re.compile(r"(Bearer|Basic|Token)\s+", re.IGNORECASE)  # of an `Authorization` header
# In a text: `NAME=value`, `Name: value` and `Bearer value`, and addresses with a login.
_NAMED = re.compile(r"([A-Za-z][\w-]*)(=|:\s*)((?:(?:Bearer|Basic|Token)\s+)?[^\s\"';&|]+)")
_BEARER = re.compile(r"\b(?:Bearer|Basic)\s+([\w.~+/=-]{6,})", re.IGNORECASE)
_LOGIN = re.compile(r"(\w+://)([^\s/@\"']*:[^\s/@\"']+)@")
_VARIABLE = re.compile(r"\$\{?\w+\}?|\$\([^()]*\)")  # of a shell
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]+")
MIN_CHARS = 4  # of a value with the name of a secret


class Hider:
    """Replaces the secrets of one server; `variables` are those that stand for them now."""

    def __init__(self, server: str) -> None:
        self._prefix = make_variable(server)
        self.variables: dict[str, None] = {}

    def hide_fields(self, fields: dict[str, Any], *, are_variables: bool) -> dict[str, Any]:
        """Return headers, or variables of a process, which keep their own names."""
        return {
            name: self._hide_field(name, value, name if are_variables else None) if isinstance(value, str) else value
            for name, value in fields.items()
        }

    def hide_arguments(self, arguments: list[Any]) -> list[Any]:
        shown: list[Any] = []
        option = ""  # whose value comes next
        for each in arguments:
            if not isinstance(each, str):
                shown.append(each)
                continue
            if option and not each.startswith("-") and is_secret(option, each):
                shown.append(self._replace(option, each))
            elif _SECRET_VALUE.fullmatch(each):
                shown.append(self._replace("secret", each))
            else:
                shown.append(self.hide_in_text(each))
            option = each if each.startswith("-") and "=" not in each else ""
        return shown

    def hide_in_text(self, text: str) -> str:
        """Return an argument, or another text that may have secrets in it."""
        if "://" in text:
            text = self.hide_in_url(text) if not re.search(r"\s", text) else text
            text = _LOGIN.sub(lambda found: f"{found[1]}{self._replace('login', found[2])}@", text)
        text = _NAMED.sub(
            lambda found: (
                f"{found[1]}{found[2]}{self._replace(found[1], found[3])}"
                if is_secret(found[1], found[3])
                else found[0]
            ),
            text,
        )
        text = _BEARER.sub(lambda found: self._replace("authorization", found[0]), text)
        if "/" in text:  # paths are long, too
            return text
        parts = re.split(f"({_REFERENCE.pattern})", text)
        parts[::2] = [_SECRET_VALUE.sub(lambda found: self._replace("secret", found[0]), part) for part in parts[::2]]
        return "".join(parts)

    def hide_in_url(self, url: str) -> str:
        try:
            parts = urlsplit(url)
            query = parse_qsl(parts.query, keep_blank_values=True)
        except ValueError:
            return url
        if "@" in parts.netloc and not _REFERENCE.search(parts.netloc):
            login, _, host = parts.netloc.rpartition("@")
            parts = parts._replace(netloc=f"{self._replace('login', login)}@{host}")
        if not any(is_secret(name, value) for name, value in query):
            return urlunsplit(parts)
        shown = {name: self._replace(name, value) if is_secret(name, value) else value for name, value in query}
        return urlunsplit(parts._replace(query=urlencode(shown, safe="${}")))

    def _hide_field(self, name: str, value: str, variable: str | None) -> str:
        if is_secret(name, value):
            return self._replace(name, value, variable)
        return _LOGIN.sub(lambda found: f"{found[1]}{self._replace(f'{name}_login', found[2])}@", value)

    def _replace(self, name: str, value: str, variable: str | None = None) -> str:
        if _REFERENCE.fullmatch(value):
            return value
        variable = variable or f"{self._prefix}_{make_variable(name)}"
        self.variables[variable] = None
        scheme = _SCHEME.match(value)
        return f"{scheme[0] if scheme else ''}${{{variable}}}"


def is_secret(name: str, value: str) -> bool:
    """Whether a value must not be copied: its name or its form says so, and it is no reference to a variable."""
    plain = _SCHEME.sub("", _REFERENCE.sub("", value)).strip()
    if not plain:
        return False
    has_name = SECRET_NAME.search(name) is not None or _SHORT_NAME.search(name) is not None
    is_named = has_name and len(plain) >= MIN_CHARS and not _NO_SECRET.fullmatch(plain)
    return is_named or _SECRET_VALUE.search(plain) is not None


def has_secret(text: str) -> bool:
    """Whether a command line or a rule has a secret in it. Long words may be paths: their form alone says nothing."""
    is_set = any(
        found[2] == "=" and is_secret(found[1], found[3]) for found in _NAMED.finditer(_VARIABLE.sub("", text))
    )
    return is_set or any(pattern.search(text) for pattern in (_TOKEN, _BEARER, _LOGIN))


def make_variable(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name.upper()).strip("_")


def hide_secrets(server: str, entry: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the entry of a server without its secrets, and the variables that stand for them."""
    hider = Hider(server)
    shown = dict(entry)
    for table, are_variables in (("env", True), ("headers", False)):
        if isinstance(shown.get(table), dict):
            shown[table] = hider.hide_fields(cast("dict[str, Any]", shown[table]), are_variables=are_variables)
    if isinstance(shown.get("args"), list):
        shown["args"] = hider.hide_arguments(cast("list[Any]", shown["args"]))
    if isinstance(shown.get("url"), str):
        shown["url"] = hider.hide_in_url(shown["url"])
    return shown, list(hider.variables)
