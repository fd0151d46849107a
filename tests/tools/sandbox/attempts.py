"""Tries to break out, one way after the other, and says of each whether it went. Runs alone, with nothing but Python.

usage: attempts.py RESULTS NAME ...

It is told by variables what there is outside: OUT (for each attempt a directory of its name, with `file` and `dir` in
it), HOME (with a secret), DATA, SERVER and VICTIM (processes), SOCKET, ABSTRACT, TCP and UDP (who listens there).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

ATTEMPTS: dict[str, Callable[[Path], object]] = {}
AS_ROOT: set[str] = set()  # what only root can do where nobody holds it
UNSURE: set[str] = set()  # what may be impossible on a machine anyway
SECRET = "the-secret-of-the-house"
LIMIT_S = 20

libc = ctypes.CDLL(None, use_errno=True)


def attempt(function: Callable[[Path], object]) -> Callable[[Path], object]:
    ATTEMPTS[function.__name__] = function
    return function


def as_root(function: Callable[[Path], object]) -> Callable[[Path], object]:
    AS_ROOT.add(function.__name__)
    return attempt(function)


def unsure(function: Callable[[Path], object]) -> Callable[[Path], object]:
    UNSURE.add(function.__name__)
    return attempt(function)


class NotThere(Exception):
    """What was tried to be reached cannot be seen."""


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read_secret(path: str) -> None:
    if SECRET not in Path(path).read_text():
        raise NotThere(path)


def ssh() -> Path:
    return Path(os.environ["HOME"], ".ssh")


def process(name: str) -> int:
    return int(os.environ[name])


# writing


@attempt
def write_a_file(out: Path) -> None:
    (out / "file").write_text("changed")


@attempt
def append_to_a_file(out: Path) -> None:
    os.close(os.open(out / "file", os.O_WRONLY | os.O_APPEND))


@attempt
def make_a_file(out: Path) -> None:
    (out / "new").touch()


@attempt
def make_a_directory(out: Path) -> None:
    (out / "new").mkdir()


@attempt
def make_a_link(out: Path) -> None:
    (out / "new").symlink_to("file")


@attempt
def make_a_pipe(out: Path) -> None:
    os.mkfifo(out / "new")


@attempt
def make_a_file_without_a_name(out: Path) -> None:
    os.close(os.open(out, os.O_TMPFILE | os.O_RDWR))


@attempt
def delete_a_file(out: Path) -> None:
    (out / "file").unlink()


@attempt
def delete_a_directory(out: Path) -> None:
    (out / "dir").rmdir()


@attempt
def cut_a_file(out: Path) -> None:
    os.truncate(out / "file", 1)


@attempt
def cut_a_file_while_opening_it(out: Path) -> None:
    os.close(os.open(out / "file", os.O_RDONLY | os.O_TRUNC))


@attempt
def write_through_a_link(out: Path) -> None:
    Path("link").symlink_to(out)
    Path("link/file").write_text("changed")


@attempt
def write_through_the_root_of_a_process(out: Path) -> None:
    Path(f"/proc/self/root{out}/file").write_text("changed")


@attempt
def write_through_a_descriptor(out: Path) -> None:
    fd = os.open(out / "file", os.O_RDONLY)
    Path(f"/proc/self/fd/{fd}").write_text("changed")


@attempt
def move_a_file_out(out: Path) -> None:
    Path("mine").write_text("changed")
    Path("mine").rename(out / "file")


@attempt
def move_a_file_in(out: Path) -> None:
    (out / "file").rename("theirs")


@attempt
def move_a_directory_in(out: Path) -> None:
    (out / "dir").rename("their-directory")


@attempt
def exchange_two_files(out: Path) -> None:
    Path("exchanged").write_text("changed")
    names = os.fsencode("exchanged"), os.fsencode(out / "file")
    checked(libc.renameat2(-100, names[0], -100, names[1], 2))


@attempt
def make_a_hard_link_inside(out: Path) -> None:
    os.link(out / "file", "hard")
    Path("hard").write_text("changed")


@attempt
def make_a_hard_link_outside(out: Path) -> None:
    Path("mine-too").write_text("changed")
    os.link("mine-too", out / "new")


@attempt
def write_what_kedge_keeps(_: Path) -> None:
    Path(os.environ["DATA"], "kedge.db").write_text("changed")


@attempt
def make_a_file_where_kedge_keeps_things(_: Path) -> None:
    Path(os.environ["DATA"], "new").touch(exist_ok=False)
    # Whatever is shown in its place: is it the one outside?
    if not Path(os.environ["DATA"], "kedge.db").exists():
        raise NotThere(os.environ["DATA"])


@attempt
def write_beside_its_own_temporary_directory(_: Path) -> None:
    (Path(os.environ["TMPDIR"]).parent / "new").touch(exist_ok=False)


# attributes


@attempt
def change_the_mode(out: Path) -> None:
    (out / "file").chmod(0o777)


@attempt
def change_the_mode_of_what_is_open(out: Path) -> None:
    os.fchmod(os.open(out / "file", os.O_RDONLY), 0o777)


@attempt
def change_the_owner(out: Path) -> None:
    os.chown(out / "file", os.getuid(), os.getgid())


@attempt
def change_the_times(out: Path) -> None:
    os.utime(out / "file", (1, 1))


@attempt
def set_an_attribute(out: Path) -> None:
    os.setxattr(out / "file", "user.kedge", b"changed")


@unsure
def set_a_flag(out: Path) -> None:
    no_dump = (0x40).to_bytes(8, "little")
    fcntl.ioctl(os.open(out / "file", os.O_RDONLY), 0x40086602, no_dump)


# reading


@attempt
def read_a_secret(_: Path) -> None:
    read_secret(f"{ssh()}/id")


@attempt
def read_a_secret_through_a_link(_: Path) -> None:
    Path("to-secrets").symlink_to(ssh())
    read_secret("to-secrets/id")


@attempt
def read_a_secret_through_a_hard_link(_: Path) -> None:
    os.link(ssh() / "id", "hard-secret")
    read_secret("hard-secret")


@attempt
def read_a_secret_through_the_root_of_a_process(_: Path) -> None:
    read_secret(f"/proc/self/root{ssh()}/id")


@attempt
def read_a_secret_from_the_directory_above(_: Path) -> None:
    read_secret(f"/proc/self/cwd/../home/{ssh().name}/id")


@attempt
def read_a_secret_through_a_directory_that_is_open(_: Path) -> None:
    home = os.open(ssh().parent, os.O_RDONLY)
    fd = os.open(f"{ssh().name}/id", os.O_RDONLY, dir_fd=home)
    if SECRET.encode() not in os.read(fd, 100):
        raise NotThere


@attempt
def move_the_secrets_in(_: Path) -> None:
    secrets = ssh()
    secrets.rename("stolen")
    try:
        read_secret("stolen/id")
    finally:
        Path("stolen").rename(secrets)  # for the next attempt


@attempt
def move_the_home_in(_: Path) -> None:
    home = ssh().parent
    home.rename("stolen-home")
    try:
        read_secret("stolen-home/.ssh/id")
    finally:
        Path("stolen-home").rename(home)  # for the next attempt


@attempt
def read_what_kedge_keeps(_: Path) -> None:
    read_secret(f"{os.environ['DATA']}/kedge.db")


@as_root
def read_a_secret_by_its_handle(out: Path) -> None:
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.memmove(handle, (128).to_bytes(4, "little"), 4)
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(-100, os.fsencode(ssh() / "id"), handle, ctypes.byref(mount), 0))
    fd = checked(libc.open_by_handle_at(os.open(out, os.O_RDONLY), handle, os.O_RDONLY))
    if SECRET.encode() not in os.read(fd, 100):
        raise NotThere


# devices and the machine


@as_root
def make_a_device(_: Path) -> None:
    os.mknod("device", 0o600 | 0o020000, os.makedev(1, 3))


@unsure
def read_the_disk(_: Path) -> None:
    names = ("vda", "sda", "nvme0n1", "xvda", "mem", "kmem", "port")
    there = [Path("/dev", name) for name in names if Path("/dev", name).exists()]
    if not there:
        raise NotThere
    os.close(os.open(there[0], os.O_RDONLY))


@unsure
def write_a_setting_of_the_kernel(_: Path) -> None:
    setting = Path("/proc/sys/kernel/core_pattern")
    setting.write_text(setting.read_text())


@unsure
def leave_the_control_group(_: Path) -> None:
    groups = [*Path("/sys/fs/cgroup").glob("cgroup.procs"), *Path("/sys/fs/cgroup").glob("*/cgroup.procs")]
    if not groups:
        raise NotThere
    os.close(os.open(groups[0], os.O_WRONLY))


@unsure
def mount_over_the_walls(out: Path) -> None:
    Path("over").mkdir()
    become_root_of_a_namespace()
    checked(libc.mount(os.fsencode(out), b"over", None, 4096, None))
    Path("over/file").write_text("changed")


@unsure
def take_a_cover_off(_: Path) -> None:
    become_root_of_a_namespace()
    checked(libc.umount2(os.fsencode(ssh()), 2))
    read_secret(f"{ssh()}/id")


@unsure
def make_the_machine_writable(out: Path) -> None:
    become_root_of_a_namespace()
    checked(libc.mount(None, b"/", None, 32 | 4096, None))
    (out / "file").write_text("changed")


@unsure
def change_the_root(out: Path) -> None:
    become_root_of_a_namespace()
    os.chroot(out)
    Path("/file").write_text("changed")


def become_root_of_a_namespace() -> None:
    """If that goes: who is root already may do without."""
    libc.unshare(0x10000000 | 0x00020000)


# processes


@attempt
def signal_a_process(_: Path) -> None:
    os.kill(process("VICTIM"), signal.SIGCONT)


@attempt
def read_the_environment_of_the_server(_: Path) -> None:
    if not Path(f"/proc/{process('SERVER')}/environ").read_bytes():
        raise NotThere


@attempt
def read_a_secret_through_the_root_of_the_server(_: Path) -> None:
    read_secret(f"/proc/{process('SERVER')}/root{ssh()}/id")


@attempt
def write_through_the_root_of_the_server(out: Path) -> None:
    Path(f"/proc/{process('SERVER')}/root{out}/file").write_text("changed")


@attempt
def look_at_what_the_server_has_open(_: Path) -> None:
    """Their numbers are no secret; what they are is."""
    if not [each.readlink() for each in Path(f"/proc/{process('SERVER')}/fd").iterdir()]:
        raise NotThere


@unsure
def write_the_memory_of_a_process(_: Path) -> None:
    os.close(os.open(f"/proc/{process('VICTIM')}/mem", os.O_RDWR))


@unsure
def trace_a_process(_: Path) -> None:
    checked(libc.ptrace(0x4206, process("VICTIM"), None, None))


@unsure
def enter_the_namespaces_of_the_server(_: Path) -> None:
    fd = os.open(f"/proc/{process('SERVER')}/ns/mnt", os.O_RDONLY)
    checked(libc.setns(fd, 0))


# sockets


@attempt
def speak_to_a_unix_socket(_: Path) -> None:
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(os.environ["SOCKET"])


@attempt
def speak_to_a_unix_socket_without_a_file(_: Path) -> None:
    with socket.socket(socket.AF_UNIX) as there:
        there.connect("\0" + os.environ["ABSTRACT"])


@attempt
def send_to_a_unix_socket_from_one_end_of_a_pair(_: Path) -> None:
    one, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"hello", os.environ["DATAGRAMS"])


@attempt
def speak_tcp(_: Path) -> None:
    socket.create_connection(("127.0.0.1", int(os.environ["TCP"])), timeout=5).close()


@attempt
def send_udp(_: Path) -> None:
    """Sending always goes; what counts is whether it arrives, and the one outside answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.settimeout(LIMIT_S / 2)
        there.connect(("127.0.0.1", int(os.environ["UDP"])))
        there.send(b"hello")
        there.recv(10)


@attempt
def listen_where_others_reach_it(_: Path) -> None:
    """Whether it is the same network is seen by the port: the one outside has it already."""
    with socket.socket() as here:
        try:
            here.bind(("127.0.0.1", int(os.environ["TCP"])))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return
            raise
    raise NotThere


@unsure
def make_calls_that_no_filter_sees(_: Path) -> None:
    checked(libc.syscall(425, 1, ctypes.create_string_buffer(120)))


@unsure
def look_at_the_keys_of_the_session(_: Path) -> None:
    number = 250 if platform.machine() == "x86_64" else 219
    checked(libc.syscall(number, 0, -3, 0))


def tried(name: str) -> str:
    """In a process of its own: some of them leave a mess behind."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT_S)
        try:
            ATTEMPTS[name](Path(os.environ["OUT"], name))
            word = "escaped"
        except NotThere:
            word = "refused: not there"
        except OSError as error:
            word = f"refused: {error.strerror or type(error).__name__}"
        except BaseException as error:  # noqa: BLE001
            word = f"broken: {error!r}"
        os.write(writing, word.encode())
        os._exit(0)
    os.close(writing)
    word = b""
    while piece := os.read(reading, 1000):
        word += piece
    os.waitpid(pid, 0)
    os.close(reading)
    return word.decode() or "broken: it died"


if __name__ == "__main__":
    results, *names = sys.argv[1:]
    Path(results).write_text(json.dumps({name: tried(name) for name in names}))
