"""Which server to talk to: the one that was named, or the one of the data directory; and the token for it."""

from __future__ import annotations

import os

from kedge.protocol import address
from kedge.protocol.address import Address, TcpAddress


class ServerLocation:
    """`is_managed`: no server was named, so the client may start one for the data directory, or replace an old one."""

    def __init__(self, server_address: Address, data_dir: str, token: str | None, *, is_managed: bool) -> None:
        self.address = server_address
        self.data_dir = data_dir
        self.token = token
        self.is_managed = is_managed

    @property
    def log_path(self) -> str:
        return os.path.join(self.data_dir, address.LOG_FILE)

    def as_unmanaged(self) -> ServerLocation:
        """The same server, which is used if it runs and not started if it does not."""
        return ServerLocation(self.address, self.data_dir, self.token, is_managed=False)


def find_server(
    *, host: str | None = None, data_dir: str | None = None, token_file: str | None = None, token: str | None = None
) -> ServerLocation:
    """Arguments win over environment variables, and those over the defaults. Raises `AddressError`."""
    directory = address.data_dir(data_dir)
    host = host or os.environ.get("KEDGE_HOST")
    if not host:
        return ServerLocation(address.default_address(directory), directory, None, is_managed=True)
    server_address = address.parse(host)
    if not isinstance(server_address, TcpAddress):
        return ServerLocation(server_address, directory, None, is_managed=False)
    return ServerLocation(server_address, directory, token or _read_token(directory, token_file), is_managed=False)


def _read_token(directory: str, token_file: str | None) -> str | None:
    if token_file:
        token = address.read_token(token_file)
        if token is None:
            raise address.AddressError(f"No token in {token_file}. Check --token-file.")
        return token
    return os.environ.get("KEDGE_TOKEN") or address.read_token(address.token_path(directory))
