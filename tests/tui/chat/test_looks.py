"""What every kind of block looks like, in the dark and in the light, in a narrow terminal and a wide one."""

from __future__ import annotations

import pytest

from tests.tui import snapshots
from tests.tui.chat.support import KINDS, Chat


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("theme", ["kedge-dark", "kedge-light"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_block_looks_as_it_did(kind: str, theme: str, width: int) -> None:
    app = Chat(KINDS[kind], theme)
    async with app.run_test(size=(width, 42)) as pilot:
        await pilot.pause()
        snapshots.check(app, f"chat/{kind}-{theme.removeprefix('kedge-')}-{width}")


async def test_without_colors_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Chat([*KINDS["diff"], *KINDS["calls"][:4]])
    async with app.run_test(size=(80, 42)) as pilot:
        await pilot.pause()
        snapshots.check(app, "chat/no-color-80")
