"""Where the peers are, and how they get there: by their package managers, each into a directory of its own.

Nothing of it lies in the repository. `KEDGE_PEERS` names another place than `~/.cache/kedge-peers`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.peers.peers import Npm, Peer, PyPI

_LIMIT_S = 1800.0  # of one installation: some are half a gigabyte


class CannotInstall(Exception):
    """One line: what is missing, and where to look."""


def cache() -> Path:
    return Path(os.environ.get("KEDGE_PEERS") or Path.home() / ".cache" / "kedge-peers")


def directory(peer: Peer) -> Path:
    """Its version is in the name, so that another pin is another installation."""
    return cache() / f"{peer.name}-{peer.version}"


def is_installed(peer: Peer) -> bool:
    return peer.program(directory(peer)).exists()


def install(peer: Peer) -> None:
    """Anew, if it was there: an installation that was broken off is indistinguishable from a whole one."""
    where = directory(peer)
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    match peer.source:
        case Npm(packages):
            npm = shutil.which("npm")
            if npm is None:
                raise CannotInstall(f"{peer.name} comes by npm, which is not on PATH")
            # What runs is named by `Npm.program`, so no package has to run anything to be installed.
            command = [npm, "install", "--prefix", str(where), "--no-audit", "--no-fund", "--ignore-scripts"]
            _run(peer, [*command, *packages])
        case PyPI(package, python):
            interpreter = _python(python)
            if interpreter is None:
                wanted = ".".join(map(str, python))
                raise CannotInstall(f"{peer.name} needs Python {wanted}, which is neither on PATH nor one of pyenv's")
            _run(peer, [str(interpreter), "-m", "venv", str(where)])
            _run(peer, [str(where / "bin" / "pip"), "install", "--quiet", package])
        case None:
            raise CannotInstall(f"{peer.name} is not installed by this command")
    if not is_installed(peer):
        raise CannotInstall(f"{peer.name} was installed, but {peer.program(where)} is not there")


def _run(peer: Peer, command: list[str]) -> None:
    try:
        done = subprocess.run(command, check=False, timeout=_LIMIT_S, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{peer.name}: {command[0]} did not end within {_LIMIT_S:.0f} s") from None
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise CannotInstall(f"{peer.name}: {Path(command[0]).name} ended with {done.returncode}: {why[-1]}")


def _python(wanted: tuple[int, int]) -> Path | None:
    return next((path for path in _pythons(wanted) if _is_python(path, wanted)), None)


def _pythons(wanted: tuple[int, int]) -> Iterator[Path]:
    name = ".".join(map(str, wanted))
    yield Path(sys.executable)
    if found := shutil.which(f"python{name}"):
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{name}.*/bin/python"))


def _is_python(path: Path, wanted: tuple[int, int]) -> bool:
    """It runs, and is that version: a shim of pyenv's may be there and run nothing."""
    code = f"import sys; sys.exit(sys.version_info[:2] != {wanted!r})"
    return subprocess.run([path, "-c", code], check=False, capture_output=True).returncode == 0
