"""Local models by name: `starter`, or the path of a GGUF file. Gives the endpoint of one that is loaded and answers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kedge.models.embedded.starter import TELL_S, Starter, Tell
from kedge.models.errors import ConfigError
from kedge.models.values import Endpoint
from kedge.protocol.address import default_address

if TYPE_CHECKING:
    from kedge.models.embedded.child_process import Child
    from kedge.models.embedded.gguf import Gguf
    from kedge.models.embedded.pool import Pool
    from kedge.models.embedded.settings import Settings

PROVIDER = "local"
STARTER = "starter"
SCHEME = "local"  # of addresses that only our transport knows
IDLE_S = 300.0  # a model that is asked again within minutes is there at once
INSTALL = "pip install 'kedge[local]'"
NOT_INSTALLED = f"local models need llama.cpp: install it with {INSTALL}"

_GREEDY: dict[str, Any] = {"temperature": 0}  # the likeliest word is the best that so small a model has


class Embedded:
    """Files are kept in the data directory, sockets beside the server's own. Most of it is imported on first use."""

    def __init__(self, data_dir: Path, *, idle_s: float = IDLE_S, tell_s: float = TELL_S) -> None:
        self._starter = Starter(data_dir / "models", tell_s)
        self._data_dir = data_dir
        self._idle_s = idle_s
        self._opened: Pool | None = None
        self._known: dict[str, tuple[Settings, str]] = {}

    @staticmethod
    def is_available() -> bool:
        """Whether the extra is installed. It is not loaded here, nor anywhere in this process."""
        return importlib.util.find_spec("xllamacpp") is not None

    async def endpoint(self, name: str, *, directory: Path, env: Mapping[str, str], tell: Tell) -> Endpoint:
        """Fetch it if need be, load it, and say where it answers. A path is relative to `directory`."""
        if not self.is_available():
            raise ConfigError("no_model", NOT_INSTALLED)
        if name == STARTER:
            path = await self._starter.fetched(env, tell)
        else:
            path = path_of(name, directory, env)
        from kedge.models.embedded.settings import Settings, info, sizes

        gguf = await asyncio.to_thread(read_file, path, name)
        fitting = sizes(gguf)
        settings = Settings(
            path=str(path), socket="", context=fitting.context, threads=fitting.threads, max_output=fitting.max_output
        )
        host = self._host(settings, name)
        if not self._pool.is_loaded(settings):
            await tell(f"loading {PROVIDER}/{name}", {"is_passing": True})
        async with self.using(host):
            pass  # a file that cannot be loaded is told of before anything is asked of it
        return Endpoint(
            provider=PROVIDER,
            model=name,
            base_url=f"{SCHEME}://{host}/v1",
            extra_body=_GREEDY if name == STARTER else {},
            info=info(gguf),
        )

    @contextlib.asynccontextmanager
    async def using(self, host: str) -> AsyncGenerator[str, None]:
        """The socket of the model whose endpoint has this host. Loads it if it was unloaded or died."""
        settings, name = self._known[host]
        async with self._pool.using(settings, f"{PROVIDER}/{name}") as socket:
            yield socket

    @property
    def children(self) -> list[Child]:
        return self._pool.children

    async def close(self) -> None:
        await self._starter.close()
        if self._opened is not None:
            await self._opened.close()

    @property
    def _pool(self) -> Pool:
        if self._opened is None:
            from kedge.models.embedded.pool import Pool

            self._opened = Pool(default_address(str(self._data_dir)), self._idle_s)
        return self._opened

    def _host(self, settings: Settings, name: str) -> str:
        """A word for an address. Two files of one name are two."""
        word = quote(Path(name).name, safe="").lower()
        for host in (word, *(f"{word}-{i}" for i in range(2, len(self._known) + 3))):
            if self._known.setdefault(host, (settings, name))[0] == settings:
                return host
        raise AssertionError


def path_of(name: str, directory: Path, env: Mapping[str, str]) -> Path:
    """The file that `local/NAME` means for a run of this directory and environment."""
    if name == "~" or name.startswith("~/"):
        name = env.get("HOME", os.path.expanduser("~")) + name[1:]  # noqa: PTH111
    return directory / name


def read_file(path: Path, name: str) -> Gguf:
    """What the file says about itself. Raises `ConfigError` with the line that says what is wrong with it."""
    from kedge.models.embedded.gguf import NotGguf, read

    try:
        return read(path)
    except NotGguf as error:
        raise ConfigError("bad_config", f"local/{name} cannot be loaded: {error}") from error
    except FileNotFoundError as error:
        hint = "" if path.suffix == ".gguf" else "; say local/starter or local/PATH.gguf"
        raise ConfigError("bad_config", f"there is no file {path}{hint}") from error
    except OSError as error:
        raise ConfigError("bad_config", f"{path} cannot be read ({error.strerror})") from error
