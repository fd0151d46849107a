"""What this machine has when nothing else is configured: a model server that answers, or the embedded model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kedge.models import catalog
from kedge.models.choose import NO_MODEL, Chosen, Local
from kedge.models.embedded.models import HONEST, INSTALL, STARTER, Embedded
from kedge.models.embedded.starter import Tell
from kedge.models.errors import ConfigError
from kedge.models.providers import NO_SETTINGS
from kedge.models.selection.local_servers import LocalServer, LocalServers
from kedge.models.values import Endpoint


class Machine:
    def __init__(self, embedded: Embedded, servers: LocalServers | None = None) -> None:
        self._embedded = embedded
        self._servers = servers or LocalServers()

    def local(self, directory: Path, env: Mapping[str, str], tell: Tell) -> Local:
        """For one run: paths are relative to its directory, and it hears how far a fetch is."""

        async def local(name: str, /) -> Chosen:
            if not name:
                for server in await self._servers.find():
                    return _of_server(server)
                if not self._embedded.is_available():
                    raise ConfigError("no_model", f"{NO_MODEL}; or have one that needs no key: {INSTALL}")
            endpoint = await self._embedded.endpoint(name or STARTER, directory=directory, env=env, tell=tell)
            return Chosen(endpoint=endpoint, why=f"{endpoint.name}: {'it was named' if name else HONEST}")

        return local


def _of_server(server: LocalServer) -> Chosen:
    model = server.models[0]
    endpoint = Endpoint(
        provider=server.provider, model=model, base_url=server.base_url, info=catalog.info(model, NO_SETTINGS)
    )
    return Chosen(endpoint=endpoint, why=f"{endpoint.name}: {server.why}")
