"""Embedded models by name: `starter`, or the path of a GGUF file."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kedge.models.embedded.starter import Report, Starter
from kedge.models.errors import ConfigError
from kedge.models.values import Endpoint
from kedge.protocol.address import default_address

if TYPE_CHECKING:
    from kedge.models.embedded.gguf import Gguf, Settings
    from kedge.models.embedded.pool import Child, Pool

PROVIDER = "local"
STARTER = "starter"
SCHEME = "local"  # of URLs that only our transport understands
IDLE_S = 300.0  # an idle model is unloaded after this time
INSTALL = "pip install 'kedge[local]'"
NOT_INSTALLED = f"local models need llama.cpp; install it with {INSTALL}"

_GREEDY: dict[str, Any] = {"temperature": 0}  # greedy decoding is best for so small a model


class EmbeddedModels:
    """Loads models. Files are in the data directory, sockets beside the server's; most code is imported late."""

    def __init__(self, data_dir: Path, *, idle_s: float = IDLE_S) -> None:
        self._starter = Starter(data_dir / "models")
        self._data_dir = data_dir
        self._idle_s = idle_s
        self._open_pool: Pool | None = None
        self._hosts: dict[str, tuple[Settings, str]] = {}  # settings and name by host

    @staticmethod
    def is_available() -> bool:
        """True if llama.cpp is installed. It is never imported in this process."""
        return importlib.util.find_spec("xllamacpp") is not None

    async def load(self, name: str, *, directory: Path, env: Mapping[str, str], report: Report) -> Endpoint:
        """Load the model, and download it before if it is the starter. A path is relative to `directory`."""
        if not self.is_available():
            raise ConfigError("no_model", NOT_INSTALLED)
        if name == STARTER:
            path = await self._starter.fetch(env, report)
        else:
            path = resolve_path(name, directory, env)
        from kedge.models.embedded.gguf import choose_settings, describe_model

        gguf = await asyncio.to_thread(read_file, path, name)
        settings = choose_settings(gguf, str(path))
        host = self._assign_host(settings, name)
        if not self._pool.is_loaded(settings):
            await report(f"Loading {PROVIDER}/{name}", {"is_passing": True})
        async with self.using(host):
            pass  # raises here, and not in the first step, if the file cannot be loaded
        return Endpoint(
            provider=PROVIDER,
            model=name,
            base_url=f"{SCHEME}://{host}/v1",
            extra_body=_GREEDY if name == STARTER else {},
            info=describe_model(gguf),
        )

    @contextlib.asynccontextmanager
    async def using(self, host: str) -> AsyncGenerator[str, None]:
        """Yield the socket of the model with this host. Loads it if it was unloaded or died."""
        settings, name = self._hosts[host]
        async with self._pool.use_model(settings, f"{PROVIDER}/{name}") as socket:
            yield socket

    @property
    def children(self) -> list[Child]:
        return self._pool.children

    async def close(self) -> None:
        await self._starter.close()
        if self._open_pool is not None:
            await self._open_pool.close()

    @property
    def _pool(self) -> Pool:
        if self._open_pool is None:
            from kedge.models.embedded.pool import Pool

            self._open_pool = Pool(default_address(str(self._data_dir)), self._idle_s)
        return self._open_pool

    def _assign_host(self, settings: Settings, name: str) -> str:
        """Return a host name for the model's URL; files of the same name get different ones."""
        base = quote(Path(name).name, safe="").lower()
        for host in (base, *(f"{base}-{i}" for i in range(2, len(self._hosts) + 3))):
            if self._hosts.setdefault(host, (settings, name))[0] == settings:
                return host
        raise AssertionError


def resolve_path(name: str, directory: Path, env: Mapping[str, str]) -> Path:
    """Return the file that `local/NAME` means for a run in this directory and environment."""
    if name == "~" or name.startswith("~/"):
        name = env.get("HOME", os.path.expanduser("~")) + name[1:]  # noqa: PTH111
    return directory / name


def read_file(path: Path, name: str) -> Gguf:
    """Read the file's header. Raises `ConfigError` if it is not a valid GGUF file."""
    from kedge.models.embedded.gguf import NotGguf, read

    try:
        return read(path)
    except NotGguf as error:
        raise ConfigError("bad_config", f"local/{name} cannot be loaded: {error}") from error
    except FileNotFoundError as error:
        hint = "" if path.suffix == ".gguf" else "; use local/starter or local/PATH.gguf"
        raise ConfigError("bad_config", f"There is no file {path}{hint}") from error
    except OSError as error:
        raise ConfigError("bad_config", f"{path} cannot be read ({error.strerror})") from error
