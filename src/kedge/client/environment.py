"""What a client finds in its environment: the server to talk to, its token, and the variables sent with a prompt."""

from __future__ import annotations

import os

from kedge.protocol import address
from kedge.protocol.address import Address, TcpAddress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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


def make_submission(prompt: str, session_id: str, run_id: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the body of `POST W/agent`. With its run id it can be sent again after a lost connection (P3)."""
    return {"session_id": session_id, "prompt": prompt, "run_id": run_id or new_run_id(), **options}


def new_run_id() -> str:
    return os.urandom(16).hex()


def caller_environment() -> dict[str, str]:
    """The variables of this process, for the run's tools and API keys; without the token of the server itself."""
    return {name: value for name, value in os.environ.items() if name != "KEDGE_TOKEN" and _is_utf8(name + value)}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
