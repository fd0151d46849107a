"""`kedge doctor`: looks at everything that a run needs, and says how to mend what is missing. It starts nothing."""

from __future__ import annotations

import os
import shutil
import sys

from kedge.cli.common import EXIT_FAILED, EXIT_OK, command, directory_of
from kedge.cli.options import Options
from kedge.client.endpoint import Endpoint, find
from kedge.client.errors import ClientError, Dropped, NotAllowed
from kedge.client.waiting import Waiter
from kedge.client.wire import Wire
from kedge.protocol.address import AddressError, UnixAddress, make_private_dir
from kedge.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HELP = """\
usage: kedge doctor [OPTION ...]

Checks the set-up and says how to mend it. Exits with 0 if nothing keeps a run from working.

"""
NO_SPACE_BYTES = 1024 * 1024  # too little for a server to start
LOW_SPACE_BYTES = 200 * 1024 * 1024

# (is it fine? None: not nice, but it works; what was found)
Finding = tuple["bool | None", str]


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags={}, values={}, go=_examine)


def _examine(options: Options) -> int:
    findings = list(_findings(options))
    for is_fine, text in findings:
        mark = {True: "ok  ", None: "note", False: "FAIL"}[is_fine]
        print(f"{mark}  {text}")
    return EXIT_FAILED if any(is_fine is False for is_fine, _ in findings) else EXIT_OK


def _findings(options: Options) -> Iterator[Finding]:
    yield True, f"kedge {VERSION}, Python {'.'.join(map(str, sys.version_info[:3]))}"
    try:
        endpoint = find(
            host=options.get("host"), data_dir=options.get("data-dir"), token_file=options.get("token-file")
        )
    except AddressError as error:
        yield False, str(error)
        return
    yield from _data_directory(endpoint.data_dir)
    yield from _server(endpoint)
    directory = directory_of(options.get("cwd"))
    # Here, because they read the configuration: whoever asks for this command's options may not have what reads it.
    from kedge.cli.doctor_model import model
    from kedge.cli.doctor_sandbox import sandbox

    yield from model(endpoint.data_dir, directory)
    yield from sandbox(directory)
    if "utf" not in (sys.stdout.encoding or "").lower():
        yield None, f"standard output is {sys.stdout.encoding}, not UTF-8; set LANG=C.UTF-8 to see every character"


def _data_directory(path: str) -> Iterator[Finding]:
    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        yield False, f"the data directory {path} cannot be written; choose another with --data-dir or KEDGE_DATA_DIR"
        return
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < NO_SPACE_BYTES:
        yield False, f"no room is left for the data directory {path}; make room, or choose another with --data-dir"
        return
    if not _is_database(os.path.join(path, "kedge.db")):
        yield False, f"{os.path.join(path, 'kedge.db')} is damaged; restore a backup, or choose another --data-dir"
        return
    if free_bytes < LOW_SPACE_BYTES:
        yield None, f"only {free_bytes >> 20} MiB are free for the data directory {path}; make room"
    yield True, f"data directory {path}" + ("" if there == path else " (made on first use)")


def _is_database(path: str) -> bool:
    """Whether a file there begins as a database does; none is made on first use."""
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return not head or head == b"SQLite format 3\0"


def _server(endpoint: Endpoint) -> Iterator[Finding]:
    if endpoint.is_ours and isinstance(endpoint.address, UnixAddress):
        try:
            make_private_dir(os.path.dirname(endpoint.address.path))
        except AddressError as error:
            yield False, str(error)
            return
    wire = Wire(endpoint.as_found(), Waiter(), client="kedge doctor")
    try:
        version = wire.request("GET", "/v1/version")["version"]
    except NotAllowed as error:
        yield False, str(error)
    except Dropped as error:
        if endpoint.is_ours:
            yield True, f"no server is running at {endpoint.address}; one is started when it is needed"
        else:
            yield False, f"no server answers at {endpoint.address} ({error}); start it there with 'kedge serve'"
    except ClientError as error:
        yield False, f"the server at {endpoint.address} answers strangely ({error}); see 'kedge logs'"
    else:
        yield version == VERSION or None, f"server {version} at {endpoint.address}"
    finally:
        wire.close()
