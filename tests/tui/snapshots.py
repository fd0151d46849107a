"""Pictures of screens, kept as SVG files under `snapshots/`: a screen that looks different fails the test that drew it.

`KEDGE_UPDATE_SNAPSHOTS=1` writes the files instead; look at them before they are committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from textual.app import App

KEPT = Path(__file__).parent / "snapshots"
UPDATE = "KEDGE_UPDATE_SNAPSHOTS"

_ID = re.compile(r"terminal-\d+")  # counted from all that is on the screen, the same in the whole picture


def picture(app: App[Any]) -> str:
    """The screen as it is now, without what differs from one run to the next."""
    svg = _ID.sub("terminal", app.export_screenshot(title="kedge"))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def check(app: App[Any], name: str, *, kept: Path = KEPT) -> None:
    """Compare the screen with the picture `name`; `name` may hold slashes."""
    file = kept / f"{name}.svg"
    drawn = picture(app)
    if os.environ.get(UPDATE):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(drawn, encoding="utf-8")
        return
    actual = file.with_suffix(".actual.svg")
    if file.is_file() and file.read_text(encoding="utf-8") == drawn:
        actual.unlink(missing_ok=True)
        return
    actual.parent.mkdir(parents=True, exist_ok=True)
    actual.write_text(drawn, encoding="utf-8")
    what = "looks different" if file.is_file() else "has no picture yet"
    raise AssertionError(f"the screen {what}: compare {actual} with {file}; {UPDATE}=1 accepts it")
