"""Checks of `kedge doctor`: the data directory and its server."""

from __future__ import annotations

import os
import shutil

from kedge.cli.doctor_checks import read_findings
from kedge.client.environment import ServerLocation
from kedge.client.errors import ClientError, Dropped, NotAllowed
from kedge.client.reconnect import Waiter
from kedge.client.server_process import is_free, read_owner_pid
from kedge.client.transport import Transport
from kedge.protocol.address import AddressError, UnixAddress, make_private_dir
from kedge.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor_checks import Finding

NO_SPACE_BYTES = 1024 * 1024  # too little for a server to start
LOW_SPACE_BYTES = 200 * 1024 * 1024
DATABASE_TIMEOUT_S = 30.0


def check_server(location: ServerLocation) -> Iterator[Finding]:
    """The data directory and its server; of a server that was named with --host, only whether it answers."""
    if not location.is_managed:
        yield from _check_named_server(location)
        return
    findings = list(_check_data_directory(location.data_dir))
    yield from findings
    if not any(is_ok is False for is_ok, _ in findings):
        yield from _check_own_server(location)


def _check_data_directory(path: str) -> Iterator[Finding]:
    existing = path
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    advice = "choose another one with --data-dir or KEDGE_DATA_DIR"
    if not os.path.isdir(existing):
        yield False, f"The data directory {path} cannot be created: {existing} is not a directory; {advice}"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield False, f"The data directory {path} is not writable; {advice}"
    elif (free_bytes := shutil.disk_usage(existing).free) < NO_SPACE_BYTES:
        yield False, f"The disk of the data directory {path} is full; free some space, or {advice}"
    else:
        if free_bytes < LOW_SPACE_BYTES:
            yield None, f"Only {free_bytes >> 20} MiB are free for the data directory {path}; free some space"
        yield True, f"data directory {path}" + ("" if existing == path else " (created on first use)")


def _check_own_server(location: ServerLocation) -> Iterator[Finding]:
    assert isinstance(location.address, UnixAddress)
    try:
        make_private_dir(os.path.dirname(location.address.path))
        version = _read_version(location)
    except Dropped:
        yield from _check_unreachable(location, location.address.path)
    except (AddressError, NotAllowed) as error:
        yield False, str(error)
    except ClientError as error:
        yield False, f"The server at {location.address} gave an unexpected answer ({error}); see 'kedge logs'"
    else:
        yield _check_version(version, location)


def _check_unreachable(location: ServerLocation, socket: str) -> Iterator[Finding]:
    if not is_free(location.data_dir):
        pid = read_owner_pid(location.data_dir)
        reason = "it hangs, or was started with another XDG_RUNTIME_DIR or TMPDIR ('kedge logs' shows its address)"
        advice = f"stop it, nothing is lost: kill {pid or 'PID'}"
        owner = f"Process {pid or '?'} owns {location.data_dir}"
        yield False, f"{owner} but does not answer at {socket}: {reason}; {advice}"
        return
    crashed = " (the last one ended unexpectedly; the next one recovers)" if os.path.exists(socket) else ""
    yield True, f"no server is running at {location.address}; one is started when needed{crashed}"
    yield from read_findings(
        "kedge.store.sqlite.database", location.data_dir, timeout_s=DATABASE_TIMEOUT_S, subject="the database"
    )


def _check_named_server(location: ServerLocation) -> Iterator[Finding]:
    try:
        version = _read_version(location)
    except NotAllowed as error:
        yield False, str(error)
    except Dropped as error:
        advice = f"start it there with kedge serve --host {location.address}, or unset KEDGE_HOST"
        yield False, f"No server answers at {location.address} ({error}); {advice}"
    except ClientError as error:
        yield False, f"{location.address} is not a Kedge server ({error}); check --host or KEDGE_HOST"
    else:
        yield _check_version(version, location)


def _check_version(version: str, location: ServerLocation) -> Finding:
    server = f"server {version} at {location.address}"
    if version == VERSION:
        return True, server
    if location.is_managed:
        return None, f"{server}, but this is {VERSION}; run 'kedge serve --stop', the next command starts the new one"
    return None, f"{server}, but this is {VERSION}; install the same version on both sides"


def _read_version(location: ServerLocation) -> str:
    transport = Transport(location.as_unmanaged(), Waiter(), client="kedge doctor")
    try:
        return str(transport.request("GET", "/v1/version")["version"])
    finally:
        transport.close()
