"""`Settings`: the `[tui]` configuration as the server reports it; `Launch`: the command line."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self, cast

from kedge.protocol.runs import Mode
from kedge.tui.editor.keys import KEYS as EDITOR_KEYS
from kedge.tui.keys import KEYS
from kedge.tui.terminal import Notify

if TYPE_CHECKING:
    from kedge.protocol.api import ConfigAnswer

_KEYS = "tui.keys."
_IDS = {key.action: f"editor.{key.action}" for key in EDITOR_KEYS if key.help} | {
    key.action: key.action for key in KEYS
}


class Settings(NamedTuple):
    mode: Mode = "ask"
    theme: str = "auto"
    notifications: Notify = "auto"
    keys: Mapping[str, str] = MappingProxyType({})  # by binding id
    unknown: tuple[str, ...] = ()  # unknown actions in `[tui.keys]`

    @classmethod
    def read(cls, answer: ConfigAnswer) -> Self:
        values = {value.key: value.value for value in answer.values}
        given = {key.removeprefix(_KEYS): str(value) for key, value in values.items() if key.startswith(_KEYS)}
        return cls(
            mode=cast("Mode", values.get("permissions.mode", "ask")),
            theme=str(values.get("tui.theme", "auto")),
            notifications=cast("Notify", values.get("tui.notifications", "auto")),
            keys={_IDS[name]: keys.replace(" ", "") for name, keys in given.items() if name in _IDS},
            unknown=tuple(sorted(given.keys() - _IDS.keys())),
        )


class Launch(NamedTuple):
    directory: str = "."
    host: str | None = None
    data_dir: str | None = None
    token_file: str | None = None
    session_id: str | None = None
    is_continued: bool = False  # continue the session that was used last
    model: str | None = None
    mode: Mode | None = None
