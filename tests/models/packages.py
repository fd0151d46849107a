"""Packages with providers: wheels made without a network or a build tool, and installed by pip into a directory."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
GROUP = "kedge.providers"


class Package(NamedTuple):
    name: str
    version: str
    entry_points: dict[str, str]
    files: dict[str, str]

    @property
    def info(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}.dist-info"

    def metadata(self) -> dict[str, str]:
        points = "".join(f"{name} = {value}\n" for name, value in self.entry_points.items())
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "entry_points.txt": f"[{GROUP}]\n{points}",
        }


def of_page(page: str) -> Package:
    """The package whose files a page shows: a name in backticks, and then what is in it."""
    text = (ROOT / page).read_text()
    files: dict[str, str] = dict(re.findall(r"\n`([\w./]+)`\n\n```\w+\n(.*?)```\n", text, re.DOTALL))
    project: dict[str, Any] = tomllib.loads(files.pop("pyproject.toml"))["project"]
    return Package(project["name"], project["version"], project["entry-points"][GROUP], files)


def installed(package: Package, directory: Path) -> Path:
    """Where pip put it."""
    wheel = directory / f"{package.info.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        members = {**package.files, **{f"{package.info}/{name}": text for name, text in package.metadata().items()}}
        for name, text in members.items():
            archive.writestr(name, text)
        archive.writestr(
            f"{package.info}/RECORD", "".join(f"{name},,\n" for name in [*members, f"{package.info}/RECORD"])
        )
    target = directory / "site"
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--no-index", "--no-deps", "--no-input"]
    subprocess.run(
        [*command, "--disable-pip-version-check", "--no-compile", "--target", str(target), str(wheel)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return target


def laid_out(package: Package, target: Path) -> None:
    """As pip would leave it, for tests that need many."""
    (target / package.info).mkdir(parents=True)
    for name, text in {**package.files, **{f"{package.info}/{n}": t for n, t in package.metadata().items()}}.items():
        (target / name).write_text(text)
