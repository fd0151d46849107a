"""The user's own editor on a prompt: what they saved comes back; whatever goes wrong, the text is as it was."""

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


class Edited(NamedTuple):
    text: str
    problem: str = ""  # then the text is the one that was given


def command_of(environ: Mapping[str, str]) -> list[str]:
    """`$VISUAL`, `$EDITOR`, or what every system has; empty: nothing."""
    for name in ("VISUAL", "EDITOR"):
        try:
            if words := shlex.split(environ.get(name, "")):
                return words
        except ValueError:
            continue
    found = (shutil.which(name, path=environ.get("PATH")) for name in _FALLBACKS)
    return [next((each for each in found if each), "")]


def edited(text: str, environ: Mapping[str, str]) -> Edited:
    """Blocks while the editor has the terminal. Never raises: the terminal has to be taken back."""
    command = command_of(environ)
    if not command[0]:
        return Edited(text, "no editor was found; set EDITOR to one")
    try:
        with tempfile.TemporaryDirectory(prefix="kedge-prompt-") as directory:  # only its owner may look into it
            path = Path(directory) / "prompt.md"
            path.write_text(text, encoding="utf-8")
            code = subprocess.run([*command, str(path)], env=dict(environ), check=False).returncode
            if code != 0:
                return Edited(text, f"{os.path.basename(command[0])} ended with {code}; the text is as it was")  # noqa: PTH119
            return Edited(path.read_text(encoding="utf-8").removesuffix("\n"))
    except (OSError, UnicodeError, ValueError) as error:
        return Edited(text, f"{command[0]} cannot be used: {error}")
