"""Who is at the other end of a Unix socket: what both sides check before they trust it (P16).

Standard library only, and little of it: every `kedge run` imports this.
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

# struct ucred of Linux is pid, uid, gid; struct xucred of macOS begins with version, uid: four bytes each.
_UCRED_BYTES = 12
_XUCRED_BYTES = 76
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1


def peer_uid(sock: Any) -> int | None:
    """The user who connected, or who listens; None where the system does not say."""
    if sys.platform == "linux":
        return _number(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_BYTES), 1)
    if sys.platform == "darwin":
        return _number(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES), 1)
    return None


def peer_pid(sock: Any) -> int:
    """The process that connected, on Linux; 0 is one that this process cannot see."""
    return _number(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_BYTES), 0)


def _number(credentials: bytes, index: int) -> int:
    return int.from_bytes(credentials[4 * index : 4 * index + 4], sys.byteorder)


def check_socket(where: UnixAddress) -> None:
    """Raise `AddressError` if others could have put a socket there. One that is missing is fine: nobody answers there.

    In the runtime directory nothing but what a server of ours makes is accepted. Anywhere else the path was named by
    the user, so only a directory that others can write to is refused.
    """
    directory = os.path.dirname(where.path)
    is_default = directory == runtime_dir()
    try:
        found = os.lstat(directory) if is_default else os.stat(directory)
        sock = os.lstat(where.path)
    except OSError:
        return  # connecting says why
    if not is_default:
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise AddressError(
                f"others can write to {directory}; chmod 700 it, or move the socket to another directory"
            )
        return
    uid = os.getuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise AddressError(f"{directory} is not a directory of yours; remove it, or set XDG_RUNTIME_DIR")
    if found.st_mode & 0o077:
        raise AddressError(f"{directory} is open to others; chmod 700 it")
    if not stat.S_ISSOCK(sock.st_mode) or sock.st_uid != uid:
        raise AddressError(f"{where.path} is not a socket of yours; remove it")


def check_peer(sock: Any, where: UnixAddress) -> None:
    """Raise `AddressError` unless we ourselves, or root, listen there; call it before anything is sent."""
    uid = peer_uid(sock)
    if uid is not None and uid not in (os.getuid(), 0):
        raise AddressError(f"the server at {where} is run by user {uid}, not by you; check --host and XDG_RUNTIME_DIR")
