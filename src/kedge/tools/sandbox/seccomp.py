"""Filter the system calls of a sandboxed command (seccomp): sockets, and ways around the other restrictions.

Landlock covers paths and TCP; this covers the rest.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
import sys
from collections.abc import Iterable
from typing import NamedTuple

from kedge.tools.sandbox.policy import SandboxUnavailable

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT = 0, 4
_X32 = 0x40000000  # a second set of system call numbers
_ARGUMENTS_AT = (16, 24)  # low halves of the first two arguments
_TYPE_MASK = 0xF  # the type of a socket, without its flags

# Sending a datagram needs no connection: one end of a pair could send to any socket of the machine.
_DATAGRAM = socket.SOCK_DGRAM
# ioctls that set attributes through a file opened for reading.
_SETS_ATTRIBUTES = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40086604, 0x40047602)
# TIOCSTI and TIOCLINUX put characters into a terminal as if they were typed.
_TYPES_INTO_A_TERMINAL = (0x5412, 0x541C)

NETWORK = (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", 16))


class _Machine(NamedTuple):
    arch: int
    numbers: dict[str, int]


# System call numbers by name. Those from 424 on are the same on every architecture.
_COMMON = {
    "clone3": 435, "io_uring_setup": 425, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
    "file_setattr": 469, "pidfd_send_signal": 424, "pidfd_getfd": 438,
}  # fmt: skip
# On x86-64, and on the architectures with the kernel's generic table, which lacks some.
_OTHERS: dict[str, tuple[int, int | None]] = {
    "clone": (56, 220), "unshare": (272, 97), "prlimit64": (302, 261), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "socket": (41, 198), "socketpair": (53, 199), "ioctl": (16, 29),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282), "syslog": (103, 116),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}  # fmt: skip
_X86_64 = _Machine(0xC000003E, {name: number for name, (number, _) in _OTHERS.items()} | _COMMON)
_GENERIC = {name: number for name, (_, number) in _OTHERS.items() if number is not None} | _COMMON
_MACHINES = {"x86_64": _X86_64, "aarch64": _Machine(0xC00000B7, _GENERIC), "riscv64": _Machine(0xC00000F3, _GENERIC)}

# io_uring makes calls that no filter sees; kernel keys belong to the user's whole session.
_ALWAYS = ("io_uring_setup", "add_key", "request_key", "keyctl")
_CHANGES_OF_ATTRIBUTES = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "file_setattr"),
    *("utime", "utimes", "futimesat", "utimensat"),
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)

# Shared memory, semaphores and queues: they outlive a command, and are shared with other programs.
IPC = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
# Access to other processes, and to files without their names.
INSPECTION = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "perf_event_open", "bpf", "userfaultfd"),
    *("open_by_handle_at", "syslog"),
)
# Calls that change limits or priority of the process in their first argument: only the caller's are allowed.
_OF_A_PROCESS = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
# Calls whose first argument gives the kind of the second, and the value that means a process.
_OF_SOME_PROCESSES = {"setpriority": 0, "ioprio_set": 1}
_NEW_USER_NAMESPACE = 0x10000000
# For kernels whose Landlock does not cover signals; also denies those to oneself.
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")


def build_filter(
    families: Iterable[int],
    *,
    no_attributes: bool = False,
    also_refused: Iterable[str] = (),
    only_self: bool = False,
    no_namespaces: bool = False,
    machine: str = "",
) -> bytes:
    """Build a filter that allows only sockets of these families, and none of the calls in `also_refused`.

    Options: `no_attributes` denies changing attributes of files, `only_self` denies changing limits or priorities of
    other processes, `no_namespaces` denies making namespaces. Raises SandboxUnavailable on an unknown architecture."""
    here = _MACHINES.get(machine or platform.machine())
    if here is None or sys.byteorder != "little" or sys.maxsize < 2**32:
        raise SandboxUnavailable(f"system calls are not known for this architecture ({platform.machine()})")
    families = tuple(families)
    numbers = here.numbers
    refused = (*_ALWAYS, *(_CHANGES_OF_ATTRIBUTES if no_attributes else ()), *also_refused)
    code = [_load(_ARCH_AT), *_unless_equal(here.arch, _KILL), _load(_NUMBER_AT)]
    if here is _X86_64:
        code += [_jump(_AT_LEAST, _X32, 0, 1), _return(_ERRNO | errno.ENOSYS)]
    for name in refused:
        if name in numbers:
            code += [_jump(_EQUAL, numbers[name], 0, 1), _return(_ERRNO | errno.EPERM)]
    code += _if_call(numbers["socket"], [_load(_ARGUMENTS_AT[0]), *_only(families)])
    if socket.AF_UNIX not in families:
        datagrams = [_load(_ARGUMENTS_AT[1]), (_AND, 0, 0, _TYPE_MASK), *_none_of((_DATAGRAM,))]
        code += _if_call(numbers["socketpair"], datagrams)
    if only_self:
        for name in _OF_A_PROCESS:
            code += _if_call(numbers[name], [_load(_ARGUMENTS_AT[0]), *_only((0,))])
        for name, process in _OF_SOME_PROCESSES.items():
            is_process = [_load(_ARGUMENTS_AT[0]), *_unless_equal(process, _ERRNO | errno.EPERM)]
            code += _if_call(numbers[name], [*is_process, _load(_ARGUMENTS_AT[1]), *_only((0,))])
    if no_namespaces:
        code += _if_call(numbers["unshare"], [_return(_ERRNO | errno.EPERM)])
        # Then clone is used instead, whose flags a filter can read.
        code += _if_call(numbers["clone3"], [_return(_ERRNO | errno.ENOSYS)])
        flags = [_jump(_ANY_BIT, _NEW_USER_NAMESPACE, 0, 1), _return(_ERRNO | errno.EPERM), _return(_ALLOW)]
        code += _if_call(numbers["clone"], [_load(_ARGUMENTS_AT[0]), *flags])
    ioctls = (*_TYPES_INTO_A_TERMINAL, *(_SETS_ATTRIBUTES if no_attributes else ()))
    code += _if_call(numbers["ioctl"], [_load(_ARGUMENTS_AT[1]), *_none_of(ioctls)])
    code.append(_return(_ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


_Instruction = tuple[int, int, int, int]


def _load(at: int) -> _Instruction:
    return (_LOAD, 0, 0, at)


def _return(what: int) -> _Instruction:
    return (_RETURN, 0, 0, what)


def _jump(test: int, value: int, if_so: int, if_not: int) -> _Instruction:
    return (test, if_so, if_not, value)


def _unless_equal(value: int, otherwise: int) -> list[_Instruction]:
    return [_jump(_EQUAL, value, 1, 0), _return(otherwise)]


def _if_call(number: int, then: list[_Instruction]) -> list[_Instruction]:
    """`then` always returns."""
    return [_jump(_EQUAL, number, 0, len(then)), *then]


def _only(values: tuple[int, ...]) -> list[_Instruction]:
    allowed = [step for value in values for step in (_jump(_EQUAL, value, 0, 1), _return(_ALLOW))]
    return [*allowed, _return(_ERRNO | errno.EPERM)]


def _none_of(values: tuple[int, ...]) -> list[_Instruction]:
    refused = [step for value in values for step in (_jump(_EQUAL, value, 0, 1), _return(_ERRNO | errno.EPERM))]
    return [*refused, _return(_ALLOW)]
