"""What holds the commands of a run from this shell, or what could. Tried in a process of its own."""

from __future__ import annotations

import os
import subprocess

from kedge.cli.doctor_child import said
from kedge.protocol.errors import KedgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor_child import Finding

PATIENCE_S = 20.0
OF_COMMANDS = "commands are asked about, and refused by kedge run"


def sandbox(directory: str) -> Iterator[Finding]:
    mode = _configured(directory)
    if mode is None:
        return  # what is wrong with the configuration was said
    found = _found()
    works = {name: described for name, described, _ in found if described}
    whys = "; ".join(why for name, _, why in found if mode in ("off", "auto", name) and why)
    if mode == "off" and works:
        read_only, best = works.get("landlock") or next(iter(works.values())), next(iter(works.values()))
        yield True, f'sandbox: read-only for unapproved commands ({read_only}); sandbox.mode = "auto" would use {best}'
    elif mode == "off":
        yield None, f"sandbox: off, and none is to be had ({whys}); mode plan has no commands"
    elif chosen := next((works[name] for name in works if mode in ("auto", name)), None):
        yield True, f"sandbox: {chosen}"
    else:
        yield False, f'sandbox: sandbox.mode is "{mode}", but {whys}; until that is mended {OF_COMMANDS}'


def _configured(directory: str) -> str | None:
    from pathlib import Path

    from kedge.config.load import Loader

    try:
        return Loader().load(Path(directory), os.environ).config.sandbox.mode
    except KedgeError:
        return None


def _found() -> list[tuple[str, str, str]]:
    """Name, what it is, and why it cannot be used. In another process, so that nothing here is held."""
    try:
        told = said("kedge.tools.sandbox", limit_s=PATIENCE_S)
    except (OSError, subprocess.SubprocessError) as error:
        return [("landlock", "", f"it could not be looked for ({type(error).__name__})")]
    lines = [line.split("\t") for line in told.splitlines()]
    return [(line[0], line[1], line[2]) for line in lines if len(line) == 3]
