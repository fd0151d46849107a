"""The data directory and its server: whether one can be started, or is there and answers."""

from __future__ import annotations

import os
import shutil

from kedge.cli.doctor_checks import findings
from kedge.client.errors import ClientError, Dropped, NotAllowed
from kedge.client.server_location import ServerLocation
from kedge.client.server_process import is_free, read_owner_pid
from kedge.client.transport import Transport
from kedge.client.waiter import Waiter
from kedge.protocol.address import AddressError, UnixAddress, make_private_dir
from kedge.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor_checks import Finding

NO_SPACE_BYTES = 1024 * 1024  # too little for a server to start
LOW_SPACE_BYTES = 200 * 1024 * 1024
PATIENCE_S = 30.0


def place(endpoint: ServerLocation) -> Iterator[Finding]:
    """Where the server is somebody else's, so is its directory: that is looked at over there."""
    if not endpoint.is_managed:
        yield from _named_server(endpoint)
        return
    problems = list(_data_directory(endpoint.data_dir))
    yield from problems
    if any(is_fine is False for is_fine, _ in problems):
        return
    yield from _own_server(endpoint)


def _data_directory(path: str) -> Iterator[Finding]:
    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there)
    other = "choose another with --data-dir or KEDGE_DATA_DIR"
    if not os.path.isdir(there):
        yield False, f"the data directory {path} cannot be made: {there} is no directory; {other}"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield False, f"the data directory {path} cannot be written; {other}"
    elif (free_bytes := shutil.disk_usage(there).free) < NO_SPACE_BYTES:
        yield False, f"no room is left for the data directory {path}; make room, or {other}"
    else:
        if free_bytes < LOW_SPACE_BYTES:
            yield None, f"only {free_bytes >> 20} MiB are free for the data directory {path}; make room"
        yield True, f"data directory {path}" + ("" if there == path else " (made on first use)")


def _own_server(endpoint: ServerLocation) -> Iterator[Finding]:
    assert isinstance(endpoint.address, UnixAddress)
    try:
        make_private_dir(os.path.dirname(endpoint.address.path))
        version = _version(endpoint)
    except Dropped:
        yield from _no_server(endpoint, endpoint.address.path)
    except (AddressError, NotAllowed) as error:
        yield False, str(error)
    except ClientError as error:
        yield False, f"the server at {endpoint.address} answers strangely ({error}); see 'kedge logs'"
    else:
        yield _of_version(version, endpoint)


def _no_server(endpoint: ServerLocation, socket: str) -> Iterator[Finding]:
    if not is_free(endpoint.data_dir):
        owner = read_owner_pid(endpoint.data_dir)
        why = "it hangs, or was started with another XDG_RUNTIME_DIR or TMPDIR ('kedge logs' says where it listens)"
        way = f"end it, nothing acknowledged is lost: kill {owner or 'PROCESS'}"
        yield False, f"process {owner or '?'} owns {endpoint.data_dir} and does not answer at {socket}: {why}; {way}"
        return
    left = " (the last one ended without a word: the next finds what it left)" if os.path.exists(socket) else ""
    yield True, f"no server is running at {endpoint.address}; one is started when it is needed{left}"
    yield from findings("kedge.store.sqlite.diagnosis", endpoint.data_dir, limit_s=PATIENCE_S, about="the database")


def _named_server(endpoint: ServerLocation) -> Iterator[Finding]:
    try:
        version = _version(endpoint)
    except NotAllowed as error:
        yield False, str(error)
    except Dropped as error:
        way = f"start it there: kedge serve --host {endpoint.address}; or unset KEDGE_HOST"
        yield False, f"no server answers at {endpoint.address} ({error}); {way}"
    except ClientError as error:
        yield False, f"what is at {endpoint.address} is no server of Kedge ({error}); check --host or KEDGE_HOST"
    else:
        yield _of_version(version, endpoint)


def _of_version(version: str, endpoint: ServerLocation) -> Finding:
    found = f"server {version} at {endpoint.address}"
    if version == VERSION:
        return True, found
    if endpoint.is_managed:
        return None, f"{found}, and this is {VERSION}; after 'kedge serve --stop' the next command starts its own"
    return None, f"{found}, and this is {VERSION}; install the same version here or there"


def _version(endpoint: ServerLocation) -> str:
    wire = Transport(endpoint.as_unmanaged(), Waiter(), client="kedge doctor")
    try:
        return str(wire.request("GET", "/v1/version")["version"])
    finally:
        wire.close()
