"""What the doctor has others find out: those who know are behind the wire, so each is asked in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# (is it fine? None: not nice, but it works; what was found, and what to do)
Finding = tuple["bool | None", str]


def said(module: str, *words: str, limit_s: float) -> str:
    """All that it prints. Raises what `subprocess` does."""
    command = [sys.executable, "-P", "-m", module, *words]
    # From the root, and without it in the path: a directory that somebody cloned may hold a module of any name.
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=True, cwd="/")
    return done.stdout


def findings(module: str, *words: str, limit_s: float, about: str) -> Iterator[Finding]:
    """What a module says in lines of JSON; where it cannot be asked, that is a finding itself."""
    try:
        told = said(module, *words, limit_s=limit_s)
    except subprocess.TimeoutExpired:
        yield None, f"{about} could not be looked at within {limit_s:g} s; the machine is busy, try again"
        return
    except (OSError, subprocess.SubprocessError) as error:
        how = f"see: {sys.executable} -P -m {module}"
        yield None, f"{about} could not be looked at ({type(error).__name__}); {how}"
        return
    for line in told.splitlines():
        is_fine, text = json.loads(line)
        yield is_fine, text
