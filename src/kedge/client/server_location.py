"""Which server is meant: the one named, or the data directory's own; and the token that lets us in."""

from __future__ import annotations

import os

from kedge.protocol import address
from kedge.protocol.address import Address, TcpAddress


class Endpoint:
    """`is_ours`: nobody named a server, so that one may be started for the data directory."""

    def __init__(self, where: Address, data_dir: str, token: str | None, *, is_ours: bool) -> None:
        self.address = where
        self.data_dir = data_dir
        self.token = token
        self.is_ours = is_ours

    @property
    def log_path(self) -> str:
        return os.path.join(self.data_dir, address.LOG_FILE)

    def as_found(self) -> Endpoint:
        """The same, but what is not there is not started."""
        return Endpoint(self.address, self.data_dir, self.token, is_ours=False)


def find(
    *, host: str | None = None, data_dir: str | None = None, token_file: str | None = None, token: str | None = None
) -> Endpoint:
    """What is given wins over the environment, and that over the defaults."""
    directory = address.data_dir(data_dir)
    named = host or os.environ.get("KEDGE_HOST")
    if not named:
        return Endpoint(address.default_address(directory), directory, None, is_ours=True)
    where = address.parse(named)
    if not isinstance(where, TcpAddress):
        return Endpoint(where, directory, None, is_ours=False)
    return Endpoint(where, directory, token or _token(directory, token_file), is_ours=False)


def _token(directory: str, token_file: str | None) -> str | None:
    if token_file:
        token = address.read_token(token_file)
        if token is None:
            raise address.AddressError(f"there is no token in {token_file}; check --token-file")
        return token
    return os.environ.get("KEDGE_TOKEN") or address.read_token(address.token_path(directory))
