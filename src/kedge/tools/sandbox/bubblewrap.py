"""Bubblewrap (`bwrap`): a command sees the machine's files read-only, what is hidden not at all, and no other process.

It has a `/tmp`, a `/dev` and process numbers of its own. It stays in its process group and its session, so that it is
found and ended like any other command; it goes on when the shell's end leaves something running.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
from pathlib import Path

from kedge.config.schema import SandboxMode
from kedge.tools.sandbox import kernel, seccomp
from kedge.tools.sandbox.landlock import ABI_OF_SCOPES, CAPABILITIES
from kedge.tools.sandbox.launch import run_in_thread
from kedge.tools.sandbox.limits import UNAPPROVED
from kedge.tools.sandbox.policy import LaunchSpec, Policy, SandboxUnavailable, describe_policy, is_below, variables
from kedge.tools.sandbox.read_only import ReadOnlyPolicy

NAME: SandboxMode = "bubblewrap"
_PROBE_S = 10.0
# What names are looked up with, and where NixOS keeps programs. The rest of /run is sockets of the machine's services.
_RUN = ("systemd/resolve", "resolvconf", "NetworkManager/resolv.conf", "current-system", "wrappers", "opengl-driver")
# Settings of the kernel, which belong to root, and so to a command of root's.
_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
_DAC_READ_SEARCH = 2
_CAPABILITY_NAMES = {
    0: "CAP_CHOWN",
    1: "CAP_DAC_OVERRIDE",
    2: "CAP_DAC_READ_SEARCH",
    3: "CAP_FOWNER",
    4: "CAP_FSETID",
    5: "CAP_KILL",
    6: "CAP_SETGID",
    7: "CAP_SETUID",
    10: "CAP_NET_BIND_SERVICE",
}


@functools.cache
def program() -> str | None:
    """The system's, else where the server's own PATH says so absolutely: a workspace must not bring one."""
    places = [each for each in os.environ.get("PATH", "").split(":") if each.startswith("/")]
    return shutil.which("bwrap", path=":".join([os.defpath, *places]))


@functools.cache
def why_not() -> str | None:
    """Why this machine cannot sandbox commands with it, or None. Tried, not looked up, and only once."""
    bwrap = program()
    if bwrap is None:
        return "there is no bwrap; install the package bubblewrap"
    try:
        tried = run_in_thread(
            lambda: _try([bwrap, *_namespaces(network=False), *_machine(), "--", "/bin/sh", "-c", ":"])
        )
    except SandboxUnavailable as error:
        return error.why
    except (OSError, subprocess.SubprocessError) as error:
        return f"bwrap could not be started ({type(error).__name__})"
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"bwrap does not work here ({said[0][:200] if said else f'exit code {tried.returncode}'})"


def _try(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    _restrict(unix_sockets=False)
    silent = subprocess.DEVNULL
    return subprocess.run(words, stdin=silent, stdout=silent, stderr=subprocess.PIPE, timeout=_PROBE_S, check=False)


def describe() -> str:
    return f"bubblewrap ({program()})"


def prepare(policy: Policy) -> LaunchSpec:
    """Raises SandboxUnavailable."""
    if (why := why_not()) is not None:
        raise SandboxUnavailable(why)
    bwrap = program()
    assert bwrap is not None
    if any(is_below(os.path.realpath(bwrap), each) for each in policy.writable):
        raise SandboxUnavailable(f"{bwrap} lies where commands can write; install the package bubblewrap")
    words = [bwrap, *_namespaces(network=policy.network), *_machine(), *_files(policy), "--"]
    return LaunchSpec(
        NAME,
        tuple(words),
        lambda: _restrict(unix_sockets=policy.unix_sockets),
        variables(policy.temporary),
        describe_policy(policy),
        supervisor="bwrap",
    )


def prepare_read_only(policy: ReadOnlyPolicy) -> LaunchSpec:
    """Raises SandboxUnavailable."""
    if (why := why_not()) is not None:
        raise SandboxUnavailable(why)
    return _prepare_read_only(policy, policy.temporary)


def _prepare_read_only(policy: ReadOnlyPolicy, temporary: str) -> LaunchSpec:
    bwrap = program()
    assert bwrap is not None
    kept = frozenset({_DAC_READ_SEARCH} if policy.keeps_read_override else ())
    words = [bwrap, *_namespaces(network=False, capabilities=kept), *_read_only_files(policy, temporary), "--"]
    return LaunchSpec(
        NAME,
        tuple(words),
        lambda: _restrict(unix_sockets=False, is_read_only=True),
        variables(temporary),
        "",
        supervisor="bwrap",
        limits=UNAPPROVED,
        temporary=temporary,
        with_temporary=functools.partial(_prepare_read_only, policy),
    )


def _read_only_files(policy: ReadOnlyPolicy, temporary: str) -> list[str]:
    """An empty root with what may be read in it, from the outside to the inside."""
    mounts: dict[str, list[str]] = {"/dev": ["--dev", "/dev"], "/proc": ["--proc", "/proc"]}
    for name in _PROC:
        mounts[f"/proc/{name}"] = ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for path in policy.readable:
        mounts[path] = ["--ro-bind-try", path, path]
    for path in policy.hidden:
        is_shown = any(is_below(path, each) for each in policy.readable)
        if path not in mounts and is_shown and _is_itself(path):
            mounts[path] = ["--tmpfs", path] if _is_directory(path) else ["--ro-bind", "/dev/null", path]
    mounts[temporary] = ["--bind", temporary, temporary]
    for link, target in policy.links:
        if not any(is_below(link, each) for each in mounts):
            mounts[link] = ["--symlink", target, link]
    inwards = sorted(mounts, key=lambda path: (path.count("/"), path))
    covers = ["/dev", *(path for path in inwards if mounts[path][0] == "--tmpfs"), "/"]
    return [word for path in inwards for word in mounts[path]] + [
        word for path in covers for word in ("--remount-ro", path)
    ]


def _namespaces(*, network: bool, capabilities: frozenset[int] = CAPABILITIES) -> list[str]:
    # No --new-session: a command has a session of its own already, without a terminal, and its group is on record.
    # No --die-with-parent: what a shell leaves in the background would die with it.
    words = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        words.append("--unshare-net")
    if os.geteuid() == 0:
        words += ["--cap-drop", "ALL"]
        words += [word for each in sorted(capabilities) for word in ("--cap-add", _CAPABILITY_NAMES[each])]
    return words


def _machine() -> list[str]:
    words = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _PROC:
        words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    if _is_directory("/run"):
        words += ["--tmpfs", "/run"]
        for name in _RUN:
            words += ["--ro-bind-try", f"/run/{name}", f"/run/{name}"]
    return words


def _files(policy: Policy) -> list[str]:
    """From the outside to the inside, so that what lies deeper counts."""
    temporary = policy.temporary
    mounts: dict[str, list[str]] = {"/tmp": ["--bind", temporary, "/tmp"]}
    if _is_directory("/var/tmp"):
        mounts["/var/tmp"] = ["--bind", temporary, "/var/tmp"]
    for path in policy.readable:
        mounts[path] = ["--ro-bind", path, path]
    for path in policy.writable:
        mounts[path] = ["--bind", path, path]
    for path in policy.protected:
        if _is_itself(path):
            mounts |= _pinned(path, policy)
            mounts[path] = ["--ro-bind", path, path]
    sockets = _sockets(policy) if policy.unix_sockets else ()
    for path in (*policy.hidden, *sockets):
        if _is_itself(path):
            mounts |= _pinned(path, policy)
            mounts[path] = ["--tmpfs", path] if _is_directory(path) else ["--ro-bind", "/dev/null", path]
    mounts[temporary] = ["--bind", temporary, temporary]
    inwards = sorted(mounts, key=lambda path: (path.count("/"), path))
    covers = [path for path in inwards if mounts[path][0] == "--tmpfs"]
    # What is written into an empty cover would be lost without a word.
    return [word for path in inwards for word in mounts[path]] + [
        word for path in covers for word in ("--remount-ro", path)
    ]


def _pinned(path: str, policy: Policy) -> dict[str, list[str]]:
    """The directories between something writable and a path in it: mounted, they cannot be moved out of the way."""
    found: dict[str, list[str]] = {}
    for root in policy.writable:
        for parent in map(str, Path(path).parents):
            if is_below(parent, root) and parent != root:
                found[parent] = ["--bind", parent, parent]
    return found


def _is_itself(path: str) -> bool:
    """Whether it is there, and no link has taken its place or that of a directory on the way: a mount would follow."""
    return os.path.realpath(path) == path and os.path.lexists(path)


def _is_directory(path: str) -> bool:
    return Path(path).is_dir() and not Path(path).is_symlink()


def _sockets(policy: Policy) -> tuple[str, ...]:
    """The Unix sockets of programs outside, our own server's among them, that have a place among the files."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return ()
    named = [words[7] for line in lines if len(words := line.split(None, 7)) == 8]
    paths = {os.path.realpath(name) for name in named if name.startswith("/")}
    mine = (*policy.writable, policy.temporary)
    return tuple(path for path in paths if _is_seen(path, policy) and not any(is_below(path, each) for each in mine))


def _is_seen(path: str, policy: Policy) -> bool:
    """Whether it is there at all, with a /run and a /tmp that are not the machine's."""
    is_replaced = any(is_below(path, each) for each in ("/run", "/tmp", "/var/tmp"))
    return not is_replaced or any(is_below(path, each) for each in policy.readable)


def _restrict(*, unix_sockets: bool, is_read_only: bool = False) -> None:
    """What namespaces leave open: sockets without a place among the files, and calls that filters do not see."""
    # bwrap itself needs sockets, to make an empty network. Shared memory and the like have a namespace of their own.
    families = (*seccomp.NETWORK, *((socket.AF_UNIX,) if unix_sockets else ()))
    refused = (*seccomp.IPC, *seccomp.INSPECTION) if is_read_only else ()
    kernel.promise_no_new_privileges()
    if kernel.landlock_abi() >= ABI_OF_SCOPES:
        ruleset = kernel.create_ruleset(0, 0, 0b11)
        try:
            kernel.restrict_self(ruleset)
        finally:
            os.close(ruleset)
    kernel.filter_calls(seccomp.program(families, no_attributes=is_read_only, also_refused=refused))
