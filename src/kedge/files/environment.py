"""Which variables a process can be given: a caller's are whatever came over the wire."""

from __future__ import annotations

from collections.abc import Mapping


def possible(env: Mapping[str, str]) -> dict[str, str]:
    """Those that can be, before anything is started with them."""
    return {name: value for name, value in env.items() if is_possible(name, value)}


def is_possible(name: str, value: str) -> bool:
    if not name or "=" in name or "\0" in name or "\0" in value:
        return False
    try:
        name.encode("utf-8", "surrogateescape")
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def absolute_path(env: Mapping[str, str], default: str) -> str:
    """Where programs are, without what depends on the directory: a workspace must not bring one."""
    return ":".join(each for each in env.get("PATH", default).split(":") if each.startswith("/"))
