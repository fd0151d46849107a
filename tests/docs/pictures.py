"""The pictures of the terminal interface, which `docs/pictures/make.py` makes.

Everything in them is real (interface, server, agent, tools, a repository with a bug, its tests) but the model, which is
scripted. What differs from one run to the next is made the same: no paths, no numbers of this machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from textual.widgets import Input

from kedge.tui.dialogs import dialog
from tests.e2e.home import Home, new_home
from tests.server.process import ROOT
from tests.support.model_control import ModelControl, model_thread
from tests.tui.snapshots import picture
from tests.tui.ui_driver import UiDriver, kedge

KEPT = ROOT / "docs" / "pictures"
SIZE = (128, 40)
MODELS = ("claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5")  # of which the catalog knows window and prices
MODEL = f"anthropic/{MODELS[1]}"
PROMPT = "Titles lose their accented letters: “Crème brûlée” becomes “cr-me-br-l-e”. Mend it, and run the tests."
TITLE = "Accents in slugs"

FILES = {
    "slugs.py": '''\
import re


def slug(title: str) -> str:
    """A title as it stands in an address."""
    words = re.findall(r"[a-z0-9]+", title.lower())
    return "-".join(words)
''',
    "test_slugs.py": """\
import unittest

from slugs import slug


class Slugs(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug("Hello, world"), "hello-world")

    def test_accents(self):
        self.assertEqual(slug("Crème brûlée"), "creme-brulee")
""",
}
OLD = '    words = re.findall(r"[a-z0-9]+", title.lower())\n'
NEW = """\
    plain = normalize("NFKD", title).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
"""
EDITS = [
    {"old_string": "import re\n", "new_string": "import re\nfrom unicodedata import normalize\n"},
    {"old_string": OLD, "new_string": NEW},
]
ANSWER = """\
Accented letters are kept now, as their plain ones, and **both tests pass**.

- `slug` takes each letter apart into letter and accent, and drops the accent.
- A title without a Latin letter still gives an empty slug. If you have such titles:

```python
def slug(title: str, default: str = "untitled") -> str:
    return "-".join(words_of(title)) or default
```
"""
STEPS: tuple[tuple[str, Mapping[str, object] | None], ...] = (
    ("I'll look at how slugs are made.", {"name": "view", "input": {"path": "slugs.py"}}),
    (
        "The pattern knows no accents: whatever is not `a-z` ends a word.",
        {"name": "multiedit", "input": {"path": "slugs.py", "edits": EDITS}},
    ),
    ("", {"name": "bash", "input": {"command": "python3 -m unittest", "description": "Run the tests"}}),
    (ANSWER, None),
)
# What the system prompt and the history of such a task take, so that the numbers in the pictures look like real ones.
TOKENS = {"input_tokens": 420, "cache_read_tokens": 7800, "cache_write_tokens": 600, "output_tokens": 180}

_TOOK = re.compile(r"(in&#160;)\d+\.\d{3}s")  # what unittest says of itself
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # fetched from elsewhere; any monospaced one will do


class Painter:
    """Takes a picture whenever the story has come to one."""

    def __init__(self, ui: UiDriver, directory: Path) -> None:
        self._hands = ui
        self._directory = directory

    async def take(self, name: str, *texts: str) -> None:
        await self._hands.shows(*texts)
        app = self._hands.app
        app.chat.editor.cursor_blink = False
        for field in app.screen.query(Input):
            field.cursor_blink = False
        app.chat.draw()  # what came meanwhile is drawn with the next frame: not after the picture
        await self._hands.pilot.pause()
        svg = _FONT_FACE.sub("", picture(app))
        (self._directory / f"{name}.svg").write_text(_TOOK.sub(r"\g<1>0.001s", svg), encoding="utf-8")


async def make(directory: Path) -> None:
    """All pictures, into this directory."""
    with model_thread(MODELS) as models, new_home(models) as home:
        repository = make_repository(home.directory / "slugs")
        _script(models)
        with patch.dict(os.environ, _environment(home, models), clear=True), patch.object(dialog, "QUIET_S", 0.0):
            server = home.serve()
            async with kedge(repository, SIZE) as ui:
                await play(ui, Painter(ui, directory))
            assert server.stop() == 0


async def play(ui: UiDriver, painter: Painter) -> None:
    await ui.submit(PROMPT)
    await ui.opens("PermissionDialog")
    await painter.take("permission", TITLE, "multiedit?", "unicodedata")
    await ui.press("a")
    await ui.shows("bash?", "$ python3 -m unittest")
    await ui.press("a")
    await ui.idle()
    session = ui.app.chat.session
    assert session is not None
    await ui.until(lambda: session.usage.output_tokens, "what it took is known")
    await painter.take("chat", TITLE, "both tests pass", "untitled", "slugs.py +3 -1", "$0.03", "4%")
    await ui.press("f4")
    await ui.opens("ChangesDialog")
    await ui.shows("modified", "slugs.py  +3")
    if not _is_split(ui):
        await ui.press("v")
    await ui.until(lambda: _is_split(ui), "side by side")
    await painter.take("changes")
    await ui.press("escape")
    await ui.closes()
    await ui.press("ctrl+o")
    await ui.opens("ModelDialog")
    await painter.take("models", "OpenAI", *MODELS)
    await ui.press("escape")
    await ui.closes()


def _is_split(ui: UiDriver) -> bool:
    return any(line.count("import re") == 2 for line in ui.text.splitlines())


def make_repository(directory: Path) -> Path:
    directory.mkdir()
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def _script(models: ModelControl) -> None:
    models.titles(text=TITLE)
    models.on(
        *({**TOKENS, "text": text, "tool_calls": json.dumps([call] if call else [])} for text, call in STEPS),
        prompt=PROMPT,
    )


def _environment(home: Home, models: ModelControl) -> dict[str, str]:
    """A shell with one key, which opens the scripted model."""
    env = {name: value for name, value in home.env.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    return {
        **env,
        "HOME": str(home.directory),
        "ANTHROPIC_BASE_URL": models.anthropic_url,
        "ANTHROPIC_API_KEY": "key-for-pictures",
        "KEDGE_MODEL": MODEL,
    }
