"""Check who is at the other end of a Unix socket, before trusting it (P16). Both sides do.

Imports little of the standard library, because every `kedge run` imports this.
"""

from __future__ import annotations

import os
import socket
import stat
import sys

from kedge.protocol.address import AddressError, UnixAddress, runtime_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
