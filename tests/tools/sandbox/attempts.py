"""Attempts to escape from a sandbox, and whether each worked. Runs by itself, with nothing but Python.

usage: attempts.py NAME ...

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

Attempt = Callable[[Path], object]

SECRET = "the-secret-of-the-house"
LIMIT_S = 20

libc = ctypes.CDLL(None, use_errno=True)


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


def write_a_file(out: Path) -> None:
    (out / "file").write_text("changed")


def append_to_a_file(out: Path) -> None:
    os.close(os.open(out / "file", os.O_WRONLY | os.O_APPEND))


def make_a_file(out: Path) -> None:
    (out / "new").touch()


def make_a_directory(out: Path) -> None:
    (out / "new").mkdir()


def make_a_link(out: Path) -> None:
    (out / "new").symlink_to("file")


def make_a_pipe(out: Path) -> None:
    os.mkfifo(out / "new")


def make_a_file_without_a_name(out: Path) -> None:
    os.close(os.open(out, os.O_TMPFILE | os.O_RDWR))


def delete_a_file(out: Path) -> None:
    (out / "file").unlink()


def delete_a_directory(out: Path) -> None:
    (out / "dir").rmdir()


def cut_a_file(out: Path) -> None:
    os.truncate(out / "file", 1)


def cut_a_file_while_opening_it(out: Path) -> None:
    os.close(os.open(out / "file", os.O_RDONLY | os.O_TRUNC))


def write_through_a_link(out: Path) -> None:
    Path("link").symlink_to(out)
    Path("link/file").write_text("changed")


def write_through_the_root_of_a_process(out: Path) -> None:
    Path(f"/proc/self/root{out}/file").write_text("changed")


def write_through_a_descriptor(out: Path) -> None:
    fd = os.open(out / "file", os.O_RDONLY)
    Path(f"/proc/self/fd/{fd}").write_text("changed")


def move_a_file_out(out: Path) -> None:
    Path("mine").write_text("changed")
    Path("mine").rename(out / "file")


def move_a_file_in(out: Path) -> None:
    (out / "file").rename("theirs")


def move_a_directory_in(out: Path) -> None:
    (out / "dir").rename("their-directory")


def exchange_two_files(out: Path) -> None:
    Path("exchanged").write_text("changed")
    names = os.fsencode("exchanged"), os.fsencode(out / "file")
    checked(libc.renameat2(-100, names[0], -100, names[1], 2))


def make_a_hard_link_inside(out: Path) -> None:
    os.link(out / "file", "hard")
    Path("hard").write_text("changed")


def make_a_hard_link_outside(out: Path) -> None:
    Path("mine-too").write_text("changed")
    os.link("mine-too", out / "new")


def write_what_kedge_keeps(_: Path) -> None:
    Path(os.environ["DATA"], "kedge.db").write_text("changed")


def make_a_file_where_kedge_keeps_things(_: Path) -> None:
    Path(os.environ["DATA"], "new").touch(exist_ok=False)
    # Whatever is shown in its place: is it the one outside?
    if not Path(os.environ["DATA"], "kedge.db").exists():
        raise NotThere(os.environ["DATA"])


def write_beside_its_own_temporary_directory(_: Path) -> None:
    (Path(os.environ["TMPDIR"]).parent / "new").touch(exist_ok=False)


# attributes


def change_the_mode(out: Path) -> None:
    (out / "file").chmod(0o777)


def change_the_mode_of_what_is_open(out: Path) -> None:
    os.fchmod(os.open(out / "file", os.O_RDONLY), 0o777)


def change_the_owner(out: Path) -> None:
    os.chown(out / "file", os.getuid(), os.getgid())


def change_the_times(out: Path) -> None:
    os.utime(out / "file", (1, 1))


def set_an_attribute(out: Path) -> None:
    os.setxattr(out / "file", "user.kedge", b"changed")


def set_a_flag(out: Path) -> None:
    no_dump = (0x40).to_bytes(8, "little")
    fcntl.ioctl(os.open(out / "file", os.O_RDONLY), 0x40086602, no_dump)


# reading


def read_a_secret(_: Path) -> None:
    read_secret(f"{ssh()}/id")


def read_a_secret_through_a_link(_: Path) -> None:
    Path("to-secrets").symlink_to(ssh())
    read_secret("to-secrets/id")


def read_a_secret_through_a_hard_link(_: Path) -> None:
    os.link(ssh() / "id", "hard-secret")
    read_secret("hard-secret")


def read_a_secret_through_the_root_of_a_process(_: Path) -> None:
    read_secret(f"/proc/self/root{ssh()}/id")


def read_a_secret_from_the_directory_above(_: Path) -> None:
    read_secret(f"/proc/self/cwd/../home/{ssh().name}/id")


def read_a_secret_through_a_directory_that_is_open(_: Path) -> None:
    home = os.open(ssh().parent, os.O_RDONLY)
    fd = os.open(f"{ssh().name}/id", os.O_RDONLY, dir_fd=home)
    if SECRET.encode() not in os.read(fd, 100):
        raise NotThere


def move_the_secrets_in(_: Path) -> None:
    secrets = ssh()
    secrets.rename("stolen")
    try:
        read_secret("stolen/id")
    finally:
        Path("stolen").rename(secrets)  # for the next attempt


def move_the_home_in(_: Path) -> None:
    home = ssh().parent
    home.rename("stolen-home")
    try:
        read_secret("stolen-home/.ssh/id")
    finally:
        Path("stolen-home").rename(home)  # for the next attempt


def read_what_kedge_keeps(_: Path) -> None:
    read_secret(f"{os.environ['DATA']}/kedge.db")


def read_a_secret_by_its_handle(out: Path) -> None:
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.memmove(handle, (128).to_bytes(4, "little"), 4)
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(-100, os.fsencode(ssh() / "id"), handle, ctypes.byref(mount), 0))
    fd = checked(libc.open_by_handle_at(os.open(out, os.O_RDONLY), handle, os.O_RDONLY))
    if SECRET.encode() not in os.read(fd, 100):
        raise NotThere


# devices and the machine


def make_a_device(_: Path) -> None:
    os.mknod("device", 0o600 | 0o020000, os.makedev(1, 3))


def read_the_disk(_: Path) -> None:
    names = ("vda", "sda", "nvme0n1", "xvda", "mem", "kmem", "port")
    there = [Path("/dev", name) for name in names if Path("/dev", name).exists()]
    if not there:
        raise NotThere
    os.close(os.open(there[0], os.O_RDONLY))


def write_a_setting_of_the_kernel(_: Path) -> None:
    setting = Path("/proc/sys/kernel/core_pattern")
    setting.write_text(setting.read_text())


def leave_the_control_group(_: Path) -> None:
    groups = [*Path("/sys/fs/cgroup").glob("cgroup.procs"), *Path("/sys/fs/cgroup").glob("*/cgroup.procs")]
    if not groups:
        raise NotThere
    os.close(os.open(groups[0], os.O_WRONLY))


def mount_over_the_walls(out: Path) -> None:
    Path("over").mkdir()
    become_root_of_a_namespace()
    checked(libc.mount(os.fsencode(out), b"over", None, 4096, None))
    Path("over/file").write_text("changed")


def take_a_cover_off(_: Path) -> None:
    become_root_of_a_namespace()
    checked(libc.umount2(os.fsencode(ssh()), 2))
    read_secret(f"{ssh()}/id")


def make_the_machine_writable(out: Path) -> None:
    become_root_of_a_namespace()
    checked(libc.mount(None, b"/", None, 32 | 4096, None))
    (out / "file").write_text("changed")


def change_the_root(out: Path) -> None:
    become_root_of_a_namespace()
    os.chroot(out)
    Path("/file").write_text("changed")


def become_root_of_a_namespace() -> None:
    """If that goes: who is root already may do without."""
    libc.unshare(0x10000000 | 0x00020000)


# processes


def signal_a_process(_: Path) -> None:
    os.kill(process("VICTIM"), signal.SIGCONT)


def read_the_environment_of_the_server(_: Path) -> None:
    if not Path(f"/proc/{process('SERVER')}/environ").read_bytes():
        raise NotThere


def read_a_secret_through_the_root_of_the_server(_: Path) -> None:
    read_secret(f"/proc/{process('SERVER')}/root{ssh()}/id")


def write_through_the_root_of_the_server(out: Path) -> None:
    Path(f"/proc/{process('SERVER')}/root{out}/file").write_text("changed")


def look_at_what_the_server_has_open(_: Path) -> None:
    """Their numbers are no secret; what they are is."""
    if not [each.readlink() for each in Path(f"/proc/{process('SERVER')}/fd").iterdir()]:
        raise NotThere


def write_the_memory_of_a_process(_: Path) -> None:
    os.close(os.open(f"/proc/{process('VICTIM')}/mem", os.O_RDWR))


def trace_a_process(_: Path) -> None:
    checked(libc.ptrace(0x4206, process("VICTIM"), None, None))


def enter_the_namespaces_of_the_server(_: Path) -> None:
    fd = os.open(f"/proc/{process('SERVER')}/ns/mnt", os.O_RDONLY)
    checked(libc.setns(fd, 0))


# sockets


def speak_to_a_unix_socket(_: Path) -> None:
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(os.environ["SOCKET"])


def speak_to_a_unix_socket_without_a_file(_: Path) -> None:
    with socket.socket(socket.AF_UNIX) as there:
        there.connect("\0" + os.environ["ABSTRACT"])


def send_to_a_unix_socket_from_one_end_of_a_pair(_: Path) -> None:
    one, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"hello", os.environ["DATAGRAMS"])


def speak_tcp(_: Path) -> None:
    socket.create_connection(("127.0.0.1", int(os.environ["TCP"])), timeout=5).close()


def send_udp(_: Path) -> None:
    """Sending always goes; what counts is whether it arrives, and the one outside answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.settimeout(LIMIT_S / 2)
        there.connect(("127.0.0.1", int(os.environ["UDP"])))
        there.send(b"hello")
        there.recv(10)


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


def make_calls_that_no_filter_sees(_: Path) -> None:
    checked(libc.syscall(425, 1, ctypes.create_string_buffer(120)))


def look_at_the_keys_of_the_session(_: Path) -> None:
    number = 250 if platform.machine() == "x86_64" else 219
    checked(libc.syscall(number, 0, -3, 0))


# shared memory


def find_shared_memory(_: Path) -> None:
    checked(libc.shmget(int(os.environ["SHM_NAME"]), 1, 0))


def attach_to_shared_memory(_: Path) -> None:
    libc.shmat.restype = ctypes.c_ssize_t
    checked(libc.shmat(int(os.environ["SHM_NUMBER"]), None, 0))


# what only the read-only sandbox refuses


def write_to_the_workspace(_: Path) -> None:
    os.close(os.open(__file__, os.O_WRONLY))


def make_a_file_in_the_workspace(_: Path) -> None:
    Path(__file__).with_name("made").touch(exist_ok=False)


def change_the_times_of_the_workspace(_: Path) -> None:
    os.utime(Path(__file__).parent, (1, 1))


def change_a_mode_in_the_workspace(_: Path) -> None:
    Path(__file__).chmod(0o700)


def read_a_file_of_the_home(_: Path) -> None:
    (ssh().parent / "notes").read_text()


def read_a_file_beside_the_workspace(_: Path) -> None:
    (Path(__file__).parent.parent / "beside").read_text()


def read_the_settings_of_kedge(_: Path) -> None:
    list(Path(os.environ["DATA"]).iterdir())
    read_what_kedge_keeps(Path())


def read_the_command_line_of_a_process(_: Path) -> None:
    if not Path(f"/proc/{process('VICTIM')}/cmdline").read_bytes():
        raise NotThere


def read_the_passwords_of_the_machine(_: Path) -> None:
    if not Path("/etc/shadow").read_text():
        raise NotThere


def read_a_private_file_of_another_user(_: Path) -> None:
    read_secret(os.environ["ANOTHERS"])


# Attempts that work for every user without a sandbox.
ANYBODY: tuple[Attempt, ...] = (
    write_a_file,
    append_to_a_file,
    make_a_file,
    make_a_directory,
    make_a_link,
    make_a_pipe,
    make_a_file_without_a_name,
    delete_a_file,
    delete_a_directory,
    cut_a_file,
    cut_a_file_while_opening_it,
    write_through_a_link,
    write_through_the_root_of_a_process,
    write_through_a_descriptor,
    move_a_file_out,
    move_a_file_in,
    move_a_directory_in,
    exchange_two_files,
    make_a_hard_link_inside,
    make_a_hard_link_outside,
    write_what_kedge_keeps,
    make_a_file_where_kedge_keeps_things,
    write_beside_its_own_temporary_directory,
    change_the_mode,
    change_the_mode_of_what_is_open,
    change_the_owner,
    change_the_times,
    set_an_attribute,
    read_a_secret,
    read_a_secret_through_a_link,
    read_a_secret_through_a_hard_link,
    read_a_secret_through_the_root_of_a_process,
    read_a_secret_from_the_directory_above,
    read_a_secret_through_a_directory_that_is_open,
    move_the_secrets_in,
    move_the_home_in,
    read_what_kedge_keeps,
    signal_a_process,
    read_the_environment_of_the_server,
    read_a_secret_through_the_root_of_the_server,
    write_through_the_root_of_the_server,
    look_at_what_the_server_has_open,
    speak_to_a_unix_socket,
    speak_to_a_unix_socket_without_a_file,
    send_to_a_unix_socket_from_one_end_of_a_pair,
    speak_tcp,
    send_udp,
    listen_where_others_reach_it,
    find_shared_memory,
    attach_to_shared_memory,
)
# What only root can do there.
ROOT: tuple[Attempt, ...] = (
    read_a_secret_by_its_handle,
    make_a_device,
)
# What may be impossible on a machine anyway.
PERHAPS: tuple[Attempt, ...] = (
    set_a_flag,
    read_the_disk,
    write_a_setting_of_the_kernel,
    leave_the_control_group,
    mount_over_the_walls,
    take_a_cover_off,
    make_the_machine_writable,
    change_the_root,
    write_the_memory_of_a_process,
    trace_a_process,
    enter_the_namespaces_of_the_server,
    make_calls_that_no_filter_sees,
    look_at_the_keys_of_the_session,
)
ATTEMPTS = {function.__name__: function for function in (*ANYBODY, *ROOT, *PERHAPS)}
# Beside all of these, what only a command is refused that nobody approved.
UNAPPROVED: tuple[Attempt, ...] = (
    write_to_the_workspace,
    make_a_file_in_the_workspace,
    change_the_times_of_the_workspace,
    change_a_mode_in_the_workspace,
    read_a_file_of_the_home,
    read_a_file_beside_the_workspace,
    read_the_settings_of_kedge,
    read_the_command_line_of_a_process,
)
UNAPPROVED_ROOT: tuple[Attempt, ...] = (read_the_passwords_of_the_machine, read_a_private_file_of_another_user)
ALL = {**ATTEMPTS, **{function.__name__: function for function in (*UNAPPROVED, *UNAPPROVED_ROOT)}}


def tried(name: str) -> str:
    """In a process of its own: some of them leave a mess behind."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT_S)
        try:
            ALL[name](Path(os.environ["OUT"], name))
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
    sys.stdout.write(json.dumps({name: tried(name) for name in sys.argv[1:]}))
