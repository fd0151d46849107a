"""What the doctor has others find out: those who know are behind the wire, so each is asked in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from kedge.protocol.errors import KedgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.config.load import Loaded

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


MODEL_TIMEOUT_S = 60.0  # a busy machine takes seconds to begin; then a key is looked up (10 s) and tried (10 s)


def configuration(directory: str) -> Iterator[Finding]:
    """What keeps it from being used; else what a repository says in vain."""
    try:
        loaded = _load(directory)
    except KedgeError as error:
        yield False, f"the configuration cannot be used: {error.message}"
        return
    for each in loaded.ignored:
        what = f"{each.file}:{each.line}: {each.key} is ignored: it {each.why}"
        yield None, f"{what}; if you trust who wrote it: kedge config trust"


def model(data_dir: str, directory: str, *, is_offline: bool) -> Iterator[Finding]:
    words = [data_dir, directory, *(["--offline"] if is_offline else [])]
    yield from findings("kedge.models.selection.diagnosis", *words, limit_s=MODEL_TIMEOUT_S, about="the model")


def _load(directory: str) -> Loaded:
    from pathlib import Path

    from kedge.config.load import Loader

    return Loader().load(Path(directory), os.environ)


SANDBOX_TIMEOUT_S = 20.0
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
        told = said("kedge.tools.sandbox", limit_s=SANDBOX_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return [("landlock", "", f"it could not be looked for ({type(error).__name__})")]
    lines = [line.split("\t") for line in told.splitlines()]
    return [(line[0], line[1], line[2]) for line in lines if len(line) == 3]


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
