"""What `[tui]` configures, as the server reads it out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self, cast

from kedge.tui.desk import Mode
from kedge.tui.keys import KEYS
from kedge.tui.terminal import Notify

if TYPE_CHECKING:
    from kedge.protocol.api import ConfigAnswer


class Settings(NamedTuple):
    mode: Mode = "ask"
    theme: str = "auto"
    notifications: Notify = "auto"
    keys: Mapping[str, str] = MappingProxyType({})  # by action

    @classmethod
    def read(cls, answer: ConfigAnswer) -> Self:
        values = {value.key: value.value for value in answer.values}
        keys = {key.action: str(values[f"tui.keys.{key.action}"]) for key in KEYS if f"tui.keys.{key.action}" in values}
        return cls(
            mode=cast("Mode", values.get("permissions.mode", "ask")),
            theme=str(values.get("tui.theme", "auto")),
            notifications=cast("Notify", values.get("tui.notifications", "auto")),
            keys=keys,
        )
