"""The bubblewrap backend (`bwrap`): a command sees files read-only, hidden paths not at all, and no other process.

It has its own `/tmp`, `/dev` and process ids. It stays in its process group and session, so that it is found and ended
like any other command, and goes on while the shell leaves a process in the background.
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
from kedge.tools.sandbox.policy import (
    UNAPPROVED,
    LaunchSpec,
    SandboxPolicy,
    SandboxUnavailable,
    describe_policy,
    is_below,
    temporary_variables,
)
from kedge.tools.sandbox.read_only import ReadOnlyPolicy

NAME: SandboxMode = "bubblewrap"
_PROBE_S = 10.0
# For name resolution, and the programs of NixOS. The rest of /run is mostly sockets of system services.
_RUN = ("systemd/resolve", "resolvconf", "NetworkManager/resolv.conf", "current-system", "wrappers", "opengl-driver")
# Kernel settings that a command run by root could change.
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
def find_bwrap() -> str | None:
    """Look in the system's directories, then in the absolute entries of the server's PATH: never in a workspace."""
    entries = [each for each in os.environ.get("PATH", "").split(":") if each.startswith("/")]
    return shutil.which("bwrap", path=":".join([os.defpath, *entries]))


@functools.cache
def find_problem() -> str | None:
    """Why bubblewrap cannot be used on this machine, or None. Starts it once to find out."""
    bwrap = find_bwrap()
    if bwrap is None:
        return "there is no bwrap; install the package bubblewrap"
    try:
        tried = run_in_thread(
            lambda: _run_probe(
                [bwrap, *_namespace_options(network=False), *_system_mounts(), "--", "/bin/sh", "-c", ":"]
            )
        )
    except SandboxUnavailable as error:
        return error.why
    except (OSError, subprocess.SubprocessError) as error:
        return f"bwrap could not be started ({type(error).__name__})"
    if tried.returncode == 0:
        return None
    errors = tried.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"bwrap does not work here ({errors[0][:200] if errors else f'exit code {tried.returncode}'})"


def _run_probe(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    _restrict(unix_sockets=False)
    null = subprocess.DEVNULL
    return subprocess.run(words, stdin=null, stdout=null, stderr=subprocess.PIPE, timeout=_PROBE_S, check=False)


def describe() -> str:
    return f"bubblewrap ({find_bwrap()})"


def prepare(policy: SandboxPolicy) -> LaunchSpec:
    """Raises SandboxUnavailable."""
    if (why := find_problem()) is not None:
        raise SandboxUnavailable(why)
    bwrap = find_bwrap()
    assert bwrap is not None
    if any(is_below(os.path.realpath(bwrap), each) for each in policy.writable):
        raise SandboxUnavailable(f"{bwrap} lies where commands can write; install the package bubblewrap")
    words = [bwrap, *_namespace_options(network=policy.network), *_system_mounts(), *_file_mounts(policy), "--"]
    return LaunchSpec(
        NAME,
        tuple(words),
        lambda: _restrict(unix_sockets=policy.unix_sockets),
        temporary_variables(policy.temporary),
        describe_policy(policy),
        supervisor="bwrap",
    )


def prepare_read_only(policy: ReadOnlyPolicy, temporary: str = "") -> LaunchSpec:
    """`temporary`: only this directory below that of the policy is writable. Raises SandboxUnavailable."""
    if (why := find_problem()) is not None:
        raise SandboxUnavailable(why)
    temporary = temporary or policy.temporary
    bwrap = find_bwrap()
    assert bwrap is not None
    kept = frozenset({_DAC_READ_SEARCH} if policy.keeps_read_override else ())
    words = [bwrap, *_namespace_options(network=False, capabilities=kept), *_read_only_mounts(policy, temporary), "--"]
    return LaunchSpec(
        NAME,
        tuple(words),
        lambda: _restrict(unix_sockets=False, is_read_only=True),
        temporary_variables(temporary),
        "",
        supervisor="bwrap",
        limits=UNAPPROVED,
        temporary=temporary,
        with_temporary=functools.partial(prepare_read_only, policy),
    )


def _read_only_mounts(policy: ReadOnlyPolicy, temporary: str) -> list[str]:
    """Mount the readable paths in an empty root, outer ones first."""
    mounts: dict[str, list[str]] = {"/dev": ["--dev", "/dev"], "/proc": ["--proc", "/proc"]}
    for name in _PROC:
        mounts[f"/proc/{name}"] = ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for path in policy.readable:
        mounts[path] = ["--ro-bind-try", path, path]
    for path in policy.hidden:
        is_shown = any(is_below(path, each) for each in policy.readable)
        if path not in mounts and is_shown and _is_unlinked(path):
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


def _namespace_options(*, network: bool, capabilities: frozenset[int] = CAPABILITIES) -> list[str]:
    # No --new-session: the command already has its own session without a terminal, and its group is recorded.
    # No --die-with-parent: background processes of the shell would die with it.
    words = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        words.append("--unshare-net")
    if os.geteuid() == 0:
        words += ["--cap-drop", "ALL"]
        words += [word for each in sorted(capabilities) for word in ("--cap-add", _CAPABILITY_NAMES[each])]
    return words


def _system_mounts() -> list[str]:
    words = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _PROC:
        words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    if _is_directory("/run"):
        words += ["--tmpfs", "/run"]
        for name in _RUN:
            words += ["--ro-bind-try", f"/run/{name}", f"/run/{name}"]
    return words


def _file_mounts(policy: SandboxPolicy) -> list[str]:
    """Outer mounts first, so that deeper ones apply."""
    temporary = policy.temporary
    mounts: dict[str, list[str]] = {"/tmp": ["--bind", temporary, "/tmp"]}
    if _is_directory("/var/tmp"):
        mounts["/var/tmp"] = ["--bind", temporary, "/var/tmp"]
    for path in policy.readable:
        mounts[path] = ["--ro-bind", path, path]
    for path in policy.writable:
        mounts[path] = ["--bind", path, path]
    for path in policy.protected:
        if _is_unlinked(path):
            mounts |= _pin_parents(path, policy)
            mounts[path] = ["--ro-bind", path, path]
    sockets = _find_sockets(policy) if policy.unix_sockets else ()
    for path in (*policy.hidden, *sockets):
        if _is_unlinked(path):
            mounts |= _pin_parents(path, policy)
            mounts[path] = ["--tmpfs", path] if _is_directory(path) else ["--ro-bind", "/dev/null", path]
    mounts[temporary] = ["--bind", temporary, temporary]
    inwards = sorted(mounts, key=lambda path: (path.count("/"), path))
    covers = [path for path in inwards if mounts[path][0] == "--tmpfs"]
    # Read-only: files written into an empty mount would be lost silently.
    return [word for path in inwards for word in mounts[path]] + [
        word for path in covers for word in ("--remount-ro", path)
    ]


def _pin_parents(path: str, policy: SandboxPolicy) -> dict[str, list[str]]:
    """Mount the directories between a writable one and a path in it, so that they cannot be renamed."""
    found: dict[str, list[str]] = {}
    for root in policy.writable:
        for parent in map(str, Path(path).parents):
            if is_below(parent, root) and parent != root:
                found[parent] = ["--bind", parent, parent]
    return found


def _is_unlinked(path: str) -> bool:
    """Whether it exists and no link is in its path, which a mount would follow."""
    return os.path.realpath(path) == path and os.path.lexists(path)


def _is_directory(path: str) -> bool:
    return Path(path).is_dir() and not Path(path).is_symlink()


def _find_sockets(policy: SandboxPolicy) -> tuple[str, ...]:
    """The Unix sockets with a path that belong to programs outside, including this server's own."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return ()
    named = [words[7] for line in lines if len(words := line.split(None, 7)) == 8]
    paths = {os.path.realpath(name) for name in named if name.startswith("/")}
    own = (*policy.writable, policy.temporary)
    return tuple(path for path in paths if _is_visible(path, policy) and not any(is_below(path, each) for each in own))


def _is_visible(path: str, policy: SandboxPolicy) -> bool:
    """Whether it is visible in the sandbox, which has its own /run and /tmp."""
    is_replaced = any(is_below(path, each) for each in ("/run", "/tmp", "/var/tmp"))
    return not is_replaced or any(is_below(path, each) for each in policy.readable)


def _restrict(*, unix_sockets: bool, is_read_only: bool = False) -> None:
    """Close what namespaces leave open: sockets without a path, and system calls that filters do not see."""
    # bwrap needs sockets to set up an empty network. Shared memory and similar IPC have a namespace of their own.
    families = (*seccomp.NETWORK, *((socket.AF_UNIX,) if unix_sockets else ()))
    refused = (*seccomp.IPC, *seccomp.INSPECTION) if is_read_only else ()
    kernel.set_no_new_privileges()
    if kernel.landlock_abi() >= ABI_OF_SCOPES:
        ruleset = kernel.create_ruleset(0, 0, 0b11)
        try:
            kernel.restrict_self(ruleset)
        finally:
            os.close(ruleset)
    kernel.install_filter(seccomp.build_filter(families, no_attributes=is_read_only, also_refused=refused))
