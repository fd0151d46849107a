"""What a clean machine installs from: the wheel and the sdist, built once, and a directory with all that they need.

What is needed is fetched once, by the pip and from the index of whoever runs the tests; from then on nothing asks a
network. The workers of one run share it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240  # for one command; the network and the machine may both be busy
OF_INSTALLERS = ("PIP_", "UV_", "PIPX_", "PYTHON", "VIRTUAL_ENV", "XDG_", "HATCH_", "KEDGE_")


class Shop:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.needed = directory / "needed"
        self.direct = directory / "direct"  # the wheel, from the tree
        self.dist = directory / "dist"  # the sdist, and the wheel from it

    @property
    def wheel(self) -> Path:
        (wheel,) = self.direct.glob("kedge-*.whl")
        return wheel

    @property
    def wheel_of_sdist(self) -> Path:
        (wheel,) = self.dist.glob("kedge-*.whl")
        return wheel

    @property
    def sdist(self) -> Path:
        (sdist,) = self.dist.glob("kedge-*.tar.gz")
        return sdist

    def stock(self) -> None:
        """Whoever comes first does it, the others wait."""
        self.directory.mkdir(exist_ok=True)
        is_stocked = self.directory / "stocked"
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_stocked.exists():
                self._fetch()
                self._build()
                is_stocked.touch()

    def _fetch(self) -> None:
        """The versions that are installed here: pip has just fetched them, and keeps what it fetches."""
        pins = self.directory / "pins.txt"
        installed = {each.name: each.version for each in metadata.distributions() if each.name != "kedge"}
        pins.write_text("".join(f"{name}=={version}\n" for name, version in sorted(installed.items())))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        extra = project["project"]["optional-dependencies"]["local"]  # the README installs it, too
        wanted = [*project["project"]["dependencies"], *extra, *project["build-system"]["requires"], "pip"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        said(*command, "--only-binary=:all:", f"--constraint={pins}", f"--dest={self.needed}", *wanted, env=os.environ)

    def _build(self) -> None:
        build = [program("uv"), "build", "--quiet", f"--python={sys.executable}", str(ROOT)]
        said(*build, "--wheel", f"--out-dir={self.direct}", env=self.env(self.directory))
        said(*build, f"--out-dir={self.dist}", env=self.env(self.directory))

    def env(self, home: Path) -> dict[str, str]:
        """Of somebody who has never installed anything, and whose only index is this."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_INSTALLERS)}
        return {
            **kept,
            "HOME": str(home),
            "PATH": os.pathsep.join(["/usr/local/bin", "/usr/bin", "/bin"]),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.needed),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_NO_CONFIG": "1",
            "UV_NO_INDEX": "1",
            "UV_OFFLINE": "1",
            "UV_FIND_LINKS": str(self.needed),
            "UV_CACHE_DIR": str(self.directory / "uv"),
            "UV_PYTHON_DOWNLOADS": "never",
        }


def program(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


def said(*command: str, env: os._Environ[str] | dict[str, str], cwd: Path | None = None) -> str:
    """What a command that must work writes."""
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
