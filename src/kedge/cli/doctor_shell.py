"""What a run and its reader use of this machine: programs that the tools start, the terminal, its characters."""

from __future__ import annotations

import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor_child import Finding

# Terminals that cannot place a cursor.
SIMPLE = ("", "dumb", "unknown")


def programs() -> Iterator[Finding]:
    git, bash, rg = shutil.which("git"), shutil.which("bash"), _ripgrep()
    if bash is None:
        yield None, "bash was not found in PATH: commands, which are written for it, run with /bin/sh; install it"
    if rg is None:
        yield None, "ripgrep was not found: the tools grep and glob do not work; install the package ripgrep"
    if git is None:
        yield None, "git was not found in PATH: the agent is told nothing of branch and changes; install it"
    if git and bash and rg:
        yield True, "programs: git, bash, ripgrep"


def terminal() -> Iterator[Finding]:
    encoding = sys.stdout.encoding or "unknown"
    if "utf" not in encoding.lower():
        yield None, f"standard output is {encoding}, not UTF-8: some characters are lost; set LANG=C.UTF-8"
    name = os.environ.get("TERM", "")
    if not os.isatty(1):
        return  # a pipe: whoever reads it has no terminal to speak of
    if name in SIMPLE:
        what = f"TERM is {name}" if name else "TERM is not set"
        yield (
            None,
            f"{what}: 'kedge run' works, but the interface draws; set TERM to what it is, like xterm-256color",
        )


def _ripgrep() -> str | None:
    """The one that was installed with Kedge, or the user's own: where the tools look for it."""
    import sysconfig

    places = os.path.dirname(sys.executable), sysconfig.get_path("scripts")
    own = (os.path.join(place, "rg") for place in places)
    return next((path for path in own if os.access(path, os.X_OK)), None) or shutil.which("rg")
