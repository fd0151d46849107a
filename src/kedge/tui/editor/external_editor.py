"""Edit a prompt in the user's own editor. If anything goes wrong, the text stays as it was."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_FALLBACKS = ("vi", "nano")


class EditResult(NamedTuple):
    text: str
    problem: str = ""  # if set, the text is unchanged


def find_editor(environ: Mapping[str, str]) -> list[str]:
    """Return the command of `$VISUAL`, `$EDITOR` or a common editor; `[""]` if there is none."""
    for name in ("VISUAL", "EDITOR"):
        try:
            if words := shlex.split(environ.get(name, "")):
                return words
        except ValueError:
            continue
    found = (shutil.which(name, path=environ.get("PATH")) for name in _FALLBACKS)
    return [next((each for each in found if each), "")]


def edit_text(text: str, environ: Mapping[str, str]) -> EditResult:
    """Block while the editor has the terminal. Never raises, because the caller must take the terminal back."""
    command = find_editor(environ)
    if not command[0]:
        return EditResult(text, "No editor found. Set EDITOR to your editor.")
    try:
        with tempfile.TemporaryDirectory(prefix="kedge-prompt-") as directory:  # readable by its owner only
            path = Path(directory) / "prompt.md"
            path.write_text(text, encoding="utf-8")
            code = subprocess.run([*command, str(path)], env=dict(environ), check=False).returncode
            if code != 0:
                name = os.path.basename(command[0])  # noqa: PTH119
                return EditResult(text, f"{name} exited with status {code}. The prompt is unchanged.")
            return EditResult(path.read_text(encoding="utf-8").removesuffix("\n"))
    except (OSError, UnicodeError, ValueError) as error:
        return EditResult(text, f"Could not run {command[0]}: {error}")
