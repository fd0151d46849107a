"""Clients of a Kedge server: `Client`, on the standard library alone, and `AsyncClient`."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would cost every `kedge run` 3 ms
if TYPE_CHECKING:
    from kedge.client.async_client import AsyncClient
    from kedge.client.sync_client import Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:
    if name == "Client":
        from kedge.client.sync_client import Client

        return Client
    if name == "AsyncClient":
        from kedge.client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(name)
