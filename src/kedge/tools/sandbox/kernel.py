"""System calls that Python does not have. Each restricts the calling thread and the processes that it starts."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys

from kedge.tools.sandbox.policy import SandboxUnavailable

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 38, 22, 23, 24
_SECCOMP_MODE_FILTER = 2
# System call numbers, the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1


@functools.cache
def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise SandboxUnavailable("it needs Linux")
    return ctypes.CDLL(None, use_errno=True)


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 if it has none."""
    return max(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), 0)


def create_ruleset(fs: int, net: int, scoped: int) -> int:
    """Return a file descriptor. Fields that an older kernel does not know are not sent to it."""
    fields = [fs, net, scoped]
    while len(fields) > 1 and not fields[-1]:
        fields.pop()
    attr = struct.pack(f"={len(fields)}Q", *fields)
    return _check_result(_libc().syscall(_CREATE_RULESET, attr, ctypes.c_size_t(len(attr)), ctypes.c_uint32(0)))


def add_path(ruleset: int, path: int, access: int) -> None:
    attr = struct.pack("=Qi", access, path)
    _check_result(
        _libc().syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), attr, ctypes.c_uint32(0))
    )


def restrict_self(ruleset: int) -> None:
    _check_result(_libc().syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))


def set_no_new_privileges() -> None:
    """From now on no program gains rights when it is started: setuid has no effect."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_filter(program: bytes) -> None:
    """Install a BPF filter for system calls; each instruction has 8 bytes."""
    code = ctypes.create_string_buffer(program, len(program))
    holder = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(holder, len(holder)))


def drop_capabilities(kept: frozenset[int]) -> None:
    """Drop all capabilities but those in `kept`; only root has any."""
    if os.geteuid() != 0:
        return
    for capability in range(64):
        if capability in kept or _libc().prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) != 1:
            continue
        _prctl(_PR_CAPBSET_DROP, capability)


def _prctl(what: int, first: int, second: ctypes.Array[ctypes.c_char] | int = 0) -> None:
    more = second if isinstance(second, ctypes.Array) else ctypes.c_ulong(second)
    zero = ctypes.c_ulong(0)
    _check_result(_libc().prctl(ctypes.c_int(what), ctypes.c_ulong(first), more, zero, zero))


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
