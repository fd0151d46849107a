"""Addresses of servers: the data directory, the socket derived from it, and the token; and checks of who is at the
other end of a Unix socket (P16). For servers and clients.

Imports little of the standard library, because every `kedge run` imports this: `typing` alone would add a tenth.
"""

from __future__ import annotations

import os
import socket
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOKEN_FILE = "token"
LOG_FILE = "server.log"
MAX_SOCKET_PATH = 103  # bytes; macOS has room for 104 with the final NUL, Linux for 108
OWNER_FILE = "kedge.lock"  # locked by the server that owns the data directory


class AddressError(Exception):
    """An address or a directory cannot be used. The message is one line for the user that says what to do."""


class UnixAddress:
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __str__(self) -> str:
        return f"unix://{self.path}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnixAddress) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)


class TcpAddress:
    __slots__ = ("host", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TcpAddress) and (self.host, self.port) == (other.host, other.port)

    def __hash__(self) -> int:
        return hash((self.host, self.port))


Address = UnixAddress | TcpAddress


def data_dir(given: str | None = None) -> str:
    """The data directory: `given`, KEDGE_DATA_DIR, or the default in the user's share."""
    path = given or os.environ.get("KEDGE_DATA_DIR")
    if not path:
        share = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
        path = os.path.join(share, "kedge")
    return os.path.realpath(path)


def parse(host: str) -> Address:
    """Parse the value of `--host` or KEDGE_HOST. Raises AddressError."""
    scheme, separator, rest = host.partition("://")
    if separator and scheme == "unix" and rest.startswith("/"):
        if len(os.fsencode(rest)) > MAX_SOCKET_PATH:
            raise AddressError(
                f"{rest} is too long for a socket (more than {MAX_SOCKET_PATH} bytes); choose a shorter --host"
            )
        return UnixAddress(rest)
    if separator and scheme == "tcp":
        name, colon, port = rest.rpartition(":")
        if colon and port.isdecimal() and int(port) < 65536 and name:
            return TcpAddress(name.strip("[]"), int(port))
    raise AddressError(f"{host!r} is not an address; use unix:///path/to.sock or tcp://127.0.0.1:PORT")


def default_address(directory: str) -> UnixAddress:
    """The socket of a data directory."""
    return UnixAddress(os.path.join(runtime_dir(), _socket_name(directory)))


def runtime_dir() -> str:
    """The directory for sockets; `make_private_dir` makes it."""
    own_name = f"kedge-{os.getuid()}"
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        path = os.path.join(base, "kedge")
    else:
        path = os.path.join(os.environ.get("TMPDIR") or "/tmp", own_name)
    if len(os.fsencode(os.path.join(path, _socket_name("")))) > MAX_SOCKET_PATH:
        return os.path.join("/tmp", own_name)  # no socket can be bound in a longer path, such as a build's TMPDIR
    return path


def _socket_name(directory: str) -> str:
    return f"{_digest(directory)}.sock"


def make_private_dir(path: str) -> None:
    """Make a directory with mode 0700, or check that an existing one is the user's own (P16). Raises AddressError."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise AddressError(f"cannot create {path} ({error.strerror}); set XDG_RUNTIME_DIR or --host") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise AddressError(f"{path} is not your directory; remove it, or set XDG_RUNTIME_DIR")
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner can read: an `opener` for `open`."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)  # an older file may be readable by others
    return fd


def is_process_alive(pid: int) -> bool:
    """Whether a process has this pid now; another user's counts, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def token_path(directory: str) -> str:
    return os.path.join(directory, TOKEN_FILE)


def read_token(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise AddressError(f"cannot read the token in {path} ({error}); check the file") from error


def _digest(text: str) -> str:
    """FNV-1a, 64 bits. hashlib is slow to import, and collisions are possible only among the user's own directories."""
    value = 0xCBF29CE484222325
    for byte in os.fsencode(text):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


# Linux: struct ucred is pid, uid, gid. macOS: struct xucred starts with version, uid. Four bytes each.
_UCRED_BYTES = 12
_XUCRED_BYTES = 76
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1


def peer_uid(sock: Any) -> int | None:
    """The user id of the peer; None where the system does not provide it."""
    if sys.platform == "linux":
        return _number(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_BYTES), 1)
    if sys.platform == "darwin":
        return _number(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES), 1)
    return None


def peer_pid(sock: Any) -> int:
    """The process id of the peer, on Linux; 0 if it is not visible to this process."""
    return _number(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_BYTES), 0)


def _number(credentials: bytes, index: int) -> int:
    return int.from_bytes(credentials[4 * index : 4 * index + 4], sys.byteorder)


def check_socket(where: UnixAddress) -> None:
    """Raise AddressError if another user could have made the socket. A missing socket is accepted: connecting fails.

    In the runtime directory only a socket as our servers make it is accepted. Any other path was given by the user, so
    only a directory that other users can write to is rejected.
    """
    directory = os.path.dirname(where.path)
    is_default = directory == runtime_dir()
    try:
        found = os.lstat(directory) if is_default else os.stat(directory)
        sock = os.lstat(where.path)
    except OSError:
        return  # connecting reports the reason
    if not is_default:
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise AddressError(
                f"other users can write to {directory}; chmod 700 it, or move the socket to another directory"
            )
        return
    uid = os.getuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise AddressError(f"{directory} is not your directory; remove it, or set XDG_RUNTIME_DIR")
    if found.st_mode & 0o077:
        raise AddressError(f"other users can access {directory}; chmod 700 it")
    if not stat.S_ISSOCK(sock.st_mode) or sock.st_uid != uid:
        raise AddressError(f"{where.path} is not your socket; remove it")


def check_peer(sock: Any, where: UnixAddress) -> None:
    """Raise AddressError unless the user or root listens there. Call it before sending anything."""
    uid = peer_uid(sock)
    if uid is not None and uid not in (os.getuid(), 0):
        raise AddressError(f"the server at {where} is run by user {uid}, not by you; check --host and XDG_RUNTIME_DIR")
