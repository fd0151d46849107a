"""Checks of `kedge doctor`: the data directory and its server, configuration, model, sandbox, programs and terminal.

Checks that need more than a client may import run in a child process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from kedge.client.environment import ServerLocation
from kedge.client.errors import ClientError, Dropped, NotAllowed
from kedge.client.reconnect import Waiter
from kedge.client.server_process import is_free, read_owner_pid
from kedge.client.transport import Transport
from kedge.protocol.address import AddressError, UnixAddress, make_private_dir
from kedge.protocol.errors import KedgeError
from kedge.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.config.load import Loaded

# True: fine, None: works, but could be better, False: keeps a run from working. The text says what to do.
Finding = tuple["bool | None", str]

MODEL_TIMEOUT_S = 60.0  # a busy machine takes seconds to start Python; then a key is looked up (10 s) and tried (10 s)
SANDBOX_TIMEOUT_S = 20.0
SIMPLE_TERMINALS = ("", "dumb", "unknown")  # cannot position a cursor


def run_module(module: str, *args: str, timeout_s: float) -> str:
    """Run a module of Kedge in a child process; returns its standard output. Raises the errors of `subprocess`."""
    command = [sys.executable, "-P", "-m", module, *args]
    # In / and with -P, so that no module of the current directory is imported: it may be somebody else's project.
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True, cwd="/").stdout


def read_findings(module: str, *args: str, timeout_s: float, subject: str) -> Iterator[Finding]:
    """Yield the findings that a module prints as lines of JSON; a module that fails is a finding itself."""
    try:
        output = run_module(module, *args, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        yield None, f"The check of {subject} took longer than {timeout_s:g} s. The machine is busy: try again."
        return
    except (OSError, subprocess.SubprocessError) as error:
        how = f"For details run: {sys.executable} -P -m {module}"
        yield None, f"The check of {subject} failed ({type(error).__name__}). {how}"
        return
    for line in output.splitlines():
        is_ok, text = json.loads(line)
        yield is_ok, text


def check_configuration(directory: str) -> Iterator[Finding]:
    """Errors in the configuration; if there are none, keys of a project's file that are ignored."""
    try:
        loaded = _load(directory)
    except KedgeError as error:
        yield False, f"The configuration is invalid: {error.message}"
        return
    for each in loaded.ignored:
        problem = f"{each.file}:{each.line}: {each.key} is ignored: it {each.why}"
        yield None, f"{problem}. If you trust its author, run: kedge config trust"


def check_model(data_dir: str, directory: str, *, is_offline: bool) -> Iterator[Finding]:
    """The model that a run from this shell would use, tried with its API key."""
    args = [data_dir, directory, *(["--offline"] if is_offline else [])]
    yield from read_findings("kedge.models.selection.diagnosis", *args, timeout_s=MODEL_TIMEOUT_S, subject="the model")


def check_skills(directory: str) -> Iterator[Finding]:
    """Skills, custom commands and sub-agents, and the files of them that are not used."""
    subject = "skills, commands and sub-agents"
    yield from read_findings("kedge.skills.listing", directory, timeout_s=SANDBOX_TIMEOUT_S, subject=subject)


def check_language_servers(directory: str) -> Iterator[Finding]:
    """Language servers for the files of the directory, and why others are not used."""
    subject = "language servers"
    yield from read_findings("kedge.lsp.findings", directory, timeout_s=SANDBOX_TIMEOUT_S, subject=subject)


def check_sandbox(directory: str) -> Iterator[Finding]:
    """The sandbox for commands of a run from this shell, tried in a child process."""
    try:
        mode = _load(directory).config.sandbox.mode
    except KedgeError:
        return  # reported by `check_configuration`
    sandboxes = _find_sandboxes()
    working = {name: description for name, description, _ in sandboxes if description}
    reasons = "; ".join(reason for name, _, reason in sandboxes if mode in ("off", "auto", name) and reason)
    if mode == "off" and working:
        best = next(iter(working.values()))
        read_only = working.get("landlock") or best
        yield True, f'sandbox: read-only for unapproved commands ({read_only}); sandbox.mode = "auto" would use {best}'
    elif mode == "off":
        yield None, f"sandbox: off, and none is available ({reasons}); mode plan cannot run commands"
    elif chosen := next((working[name] for name in working if mode in ("auto", name)), None):
        yield True, f"sandbox: {chosen}"
    else:
        consequence = "until this is fixed, every command needs approval, and kedge run denies them"
        yield False, f'sandbox: sandbox.mode is "{mode}", but {reasons}; {consequence}'


def _load(directory: str) -> Loaded:
    from pathlib import Path

    from kedge.config.load import Loader

    return Loader().load(Path(directory), os.environ)


def _find_sandboxes() -> list[tuple[str, str, str]]:
    """Name, description, and the reason why it cannot be used, of each. (A trial would sandbox this process.)"""
    try:
        output = run_module("kedge.tools.sandbox", timeout_s=SANDBOX_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return [("landlock", "", f"the check failed ({type(error).__name__})")]
    lines = [line.split("\t") for line in output.splitlines()]
    return [(line[0], line[1], line[2]) for line in lines if len(line) == 3]


def check_programs() -> Iterator[Finding]:
    git, bash, rg = shutil.which("git"), shutil.which("bash"), _find_ripgrep()
    if bash is None:
        yield None, "bash was not found in PATH: commands are written for it, but run with /bin/sh. Install bash."
    if rg is None:
        yield None, "ripgrep was not found: the tools grep and glob do not work. Install ripgrep."
    if git is None:
        yield None, "git was not found in PATH: the agent does not see branches and changes. Install git."
    if git and bash and rg:
        yield True, "programs: git, bash, ripgrep"


def check_terminal() -> Iterator[Finding]:
    encoding = sys.stdout.encoding or "unknown"
    if "utf" not in encoding.lower():
        yield None, f"standard output is {encoding}, not UTF-8: some characters are lost. Set LANG=C.UTF-8."
    name = os.environ.get("TERM", "")
    if os.isatty(1) and name in SIMPLE_TERMINALS:
        problem = f"TERM is {name}" if name else "TERM is not set"
        yield None, f"{problem}: 'kedge run' works, the terminal interface does not. Set TERM, like to xterm-256color."


def _find_ripgrep() -> str | None:
    """The one that was installed with Kedge, or the user's own; the tools look in the same order."""
    import sysconfig

    directories = os.path.dirname(sys.executable), sysconfig.get_path("scripts")
    own = (os.path.join(directory, "rg") for directory in directories)
    return next((path for path in own if os.access(path, os.X_OK)), None) or shutil.which("rg")


NO_SPACE_BYTES = 1024 * 1024  # too little for a server to start
LOW_SPACE_BYTES = 200 * 1024 * 1024
DATABASE_TIMEOUT_S = 30.0


def check_server(location: ServerLocation) -> Iterator[Finding]:
    """The data directory and its server; of a server that was named with --host, only whether it answers."""
    if not location.is_managed:
        yield from _check_named_server(location)
        return
    findings = list(_check_data_directory(location.data_dir))
    yield from findings
    if not any(is_ok is False for is_ok, _ in findings):
        yield from _check_own_server(location)


def _check_data_directory(path: str) -> Iterator[Finding]:
    existing = path
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    advice = "choose another one with --data-dir or KEDGE_DATA_DIR"
    if not os.path.isdir(existing):
        yield False, f"The data directory {path} cannot be created: {existing} is not a directory; {advice}"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield False, f"The data directory {path} is not writable; {advice}"
    elif (free_bytes := shutil.disk_usage(existing).free) < NO_SPACE_BYTES:
        yield False, f"The disk of the data directory {path} is full; free some space, or {advice}"
    else:
        if free_bytes < LOW_SPACE_BYTES:
            yield None, f"Only {free_bytes >> 20} MiB are free for the data directory {path}; free some space"
        yield True, f"data directory {path}" + ("" if existing == path else " (created on first use)")


def _check_own_server(location: ServerLocation) -> Iterator[Finding]:
    assert isinstance(location.address, UnixAddress)
    try:
        make_private_dir(os.path.dirname(location.address.path))
        version = _read_version(location)
    except Dropped:
        yield from _check_unreachable(location, location.address.path)
    except (AddressError, NotAllowed) as error:
        yield False, str(error)
    except ClientError as error:
        yield False, f"The server at {location.address} gave an unexpected answer ({error}); see 'kedge logs'"
    else:
        yield _check_version(version, location)


def _check_unreachable(location: ServerLocation, socket: str) -> Iterator[Finding]:
    if not is_free(location.data_dir):
        pid = read_owner_pid(location.data_dir)
        reason = "it hangs, or was started with another XDG_RUNTIME_DIR or TMPDIR ('kedge logs' shows its address)"
        advice = f"stop it, nothing is lost: kill {pid or 'PID'}"
        owner = f"Process {pid or '?'} owns {location.data_dir}"
        yield False, f"{owner} but does not answer at {socket}: {reason}; {advice}"
        return
    crashed = " (the last one ended unexpectedly; the next one recovers)" if os.path.exists(socket) else ""
    yield True, f"no server is running at {location.address}; one is started when needed{crashed}"
    yield from read_findings(
        "kedge.store.sqlite.database", location.data_dir, timeout_s=DATABASE_TIMEOUT_S, subject="the database"
    )


def _check_named_server(location: ServerLocation) -> Iterator[Finding]:
    try:
        version = _read_version(location)
    except NotAllowed as error:
        yield False, str(error)
    except Dropped as error:
        advice = f"start it there with kedge serve --host {location.address}, or unset KEDGE_HOST"
        yield False, f"No server answers at {location.address} ({error}); {advice}"
    except ClientError as error:
        yield False, f"{location.address} is not a Kedge server ({error}); check --host or KEDGE_HOST"
    else:
        yield _check_version(version, location)


def _check_version(version: str, location: ServerLocation) -> Finding:
    server = f"server {version} at {location.address}"
    if version == VERSION:
        return True, server
    if location.is_managed:
        return None, f"{server}, but this is {VERSION}; run 'kedge serve --stop', the next command starts the new one"
    return None, f"{server}, but this is {VERSION}; install the same version on both sides"


def _read_version(location: ServerLocation) -> str:
    transport = Transport(location.as_unmanaged(), Waiter(), client="kedge doctor")
    try:
        return str(transport.request("GET", "/v1/version")["version"])
    finally:
        transport.close()
