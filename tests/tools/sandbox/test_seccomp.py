"""The filter of calls, for machines that this one is not: interpreted as the kernel would, call by call."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from kedge.tools.sandbox import seccomp
from kedge.tools.sandbox.policy import SandboxUnavailable

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
# Of the tables of the kernel: some of those that matter.
NUMBERS = {
    "x86_64": {"socket": 41, "socketpair": 53, "openat": 257, "fchmodat": 268, "keyctl": 250, "utimensat": 280},
    "aarch64": {"socket": 198, "socketpair": 199, "openat": 56, "fchmodat": 53, "keyctl": 219, "utimensat": 88},
    "riscv64": {"socket": 198, "socketpair": 199, "openat": 56, "fchmodat": 53, "keyctl": 219, "utimensat": 88},
}
IPC = {
    "x86_64": {"shmget": 29, "shmat": 30, "msgget": 68, "semget": 64, "semtimedop": 220, "mq_open": 240, "ptrace": 101},
    "aarch64": {"shmget": 194, "shmat": 196, "msgget": 186, "semget": 190, "semtimedop": 192, "mq_open": 180},
    "riscv64": {"shmget": 194, "shmat": 196, "msgget": 186, "semget": 190, "semtimedop": 192, "mq_open": 180},
}
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
REFUSED = 0x00050000 | errno.EPERM


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would do with a call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    at, value = 0, 0
    while True:
        code, if_so, if_not, given = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, given)
            case 0x54:
                value &= given
            case 0x15:
                at += if_so if value == given else if_not
            case 0x35:
                at += if_so if value >= given else if_not
            case 0x06:
                return given
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.mark.parametrize("machine", ARCHES)
def test_sockets_of_other_families_are_refused(machine: str) -> None:
    program = seccomp.build_filter(seccomp.NETWORK, machine=machine)
    number = NUMBERS[machine]["socket"]
    allowed = {family for family in range(50) if decide(program, ARCHES[machine], number, family) == ALLOWED}
    assert allowed == set(seccomp.NETWORK)
    assert decide(seccomp.build_filter((), machine=machine), ARCHES[machine], number, socket.AF_INET) == REFUSED


@pytest.mark.parametrize("machine", ARCHES)
def test_a_pair_of_sockets_is_no_way_out(machine: str) -> None:
    program = seccomp.build_filter((), machine=machine)
    number = NUMBERS[machine]["socketpair"]
    cloexec = 0o2000000
    stream, datagram = socket.SOCK_STREAM.value, socket.SOCK_DGRAM.value
    assert decide(program, ARCHES[machine], number, socket.AF_UNIX, stream | cloexec) == ALLOWED
    assert decide(program, ARCHES[machine], number, socket.AF_UNIX, datagram) == REFUSED
    assert decide(program, ARCHES[machine], number, socket.AF_UNIX, datagram | cloexec) == REFUSED


@pytest.mark.parametrize("machine", ARCHES)
def test_attributes_are_refused_only_to_those_who_may_write_nothing(machine: str) -> None:
    may, may_not = (seccomp.build_filter((), no_attributes=each, machine=machine) for each in (False, True))
    for name in ("fchmodat", "utimensat"):
        assert decide(may, ARCHES[machine], NUMBERS[machine][name]) == ALLOWED
        assert decide(may_not, ARCHES[machine], NUMBERS[machine][name]) == REFUSED
    assert decide(may_not, ARCHES[machine], NUMBERS[machine]["openat"]) == ALLOWED


@pytest.mark.parametrize("machine", ARCHES)
def test_what_no_filter_could_see_is_refused(machine: str) -> None:
    program = seccomp.build_filter(seccomp.NETWORK, machine=machine)
    assert decide(program, ARCHES[machine], 425) == REFUSED
    assert decide(program, ARCHES[machine], NUMBERS[machine]["keyctl"]) == REFUSED


@pytest.mark.parametrize("machine", ARCHES)
def test_shared_memory_semaphores_and_queues_are_refused_where_that_is_asked_for(machine: str) -> None:
    may = seccomp.build_filter((), machine=machine)
    may_not = seccomp.build_filter((), also_refused=(*seccomp.IPC, *seccomp.INSPECTION), machine=machine)
    for number in IPC[machine].values():
        assert decide(may, ARCHES[machine], number) == ALLOWED
        assert decide(may_not, ARCHES[machine], number) == REFUSED


@pytest.mark.parametrize("machine", ARCHES)
def test_nothing_is_typed_into_a_terminal(machine: str) -> None:
    number = {"x86_64": 16}.get(machine, 29)
    program = seccomp.build_filter(seccomp.NETWORK, machine=machine)
    tiocsti, window_size = 0x5412, 0x5413
    assert decide(program, ARCHES[machine], number, 0, tiocsti) == REFUSED
    assert decide(program, ARCHES[machine], number, 0, window_size) == ALLOWED


@pytest.mark.parametrize("machine", ARCHES)
def test_the_calls_of_another_machine_end_the_program(machine: str) -> None:
    """Numbers mean other calls there."""
    other = 0x40000003  # of 32 bits
    assert decide(seccomp.build_filter((), machine=machine), other, 1) == KILLED


def test_x32_system_calls_are_denied() -> None:
    program = seccomp.build_filter((), machine="x86_64")
    assert decide(program, ARCHES["x86_64"], 0x40000000 | 41, socket.AF_INET) == 0x00050000 | errno.ENOSYS


def test_an_unknown_architecture_has_no_sandbox() -> None:
    with pytest.raises(SandboxUnavailable):
        seccomp.build_filter((), machine="vax")
