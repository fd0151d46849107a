"""`kedge serve`: the server in the foreground; also what a client starts, detached, when there is none."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import threading
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

from kedge.cli.arguments import Parser
from kedge.cli.main import EXIT_FAILED, EXIT_OK, EXIT_USAGE, complain, one_line
from kedge.cli.options import UsageError
from kedge.protocol.address import LOG_FILE, Address, AddressError, UnixAddress, data_dir, default_address, parse

if TYPE_CHECKING:
    from kedge.agent.agent import Agent
    from kedge.config.configs import Configs

WORDS = (  # for the shell's completion
    "--host", "--data-dir", "--token-file", "--allow-remote", "--allow-host", "--idle-timeout", "--stop", "--help",
)  # fmt: skip
LOG_BYTES = 5 * 1024 * 1024
OLD_LOGS = 3
IDLE_S = 30 * 60.0  # a detached server leaves after that long without work
LINGER_S = 1.0
END_S = 2.0  # for a process that has nothing left to do
STOP_S = 20.0  # runs get 5 s (P15), their processes 3 s, and a slow disk the rest


def run(argv: list[str]) -> int:
    try:
        options = _parser().parse_args(argv)
    except UsageError as error:
        complain(f"serve: {error}; 'kedge serve --help' shows its options")
        return EXIT_USAGE
    directory = data_dir(options.data_dir)
    if options.stop:
        return _stop(options, directory)
    report = Report(options.ready_fd)
    try:
        return _serve(options, directory, report)
    except (AddressError, UsageError, OSError, _open_error()) as error:
        logging.getLogger(__name__).info("not started: %s", error)
        report.failed(one_line(error))
        return EXIT_USAGE


def _serve(options: argparse.Namespace, directory: str, report: Report) -> int:
    from kedge.agent.lazy_agent import LazyAgent
    from kedge.config.configs import Configs
    from kedge.server import serve

    host = options.host
    if host is None and not options.detached:
        host = os.environ.get("KEDGE_HOST") or None
    settings = serve.Settings(
        data_dir=directory,
        host=None if host is None else parse(host),
        token=os.environ.get("KEDGE_TOKEN", "").strip() or None,
        token_file=options.token_file,
        allow_remote=options.allow_remote,
        allowed_hosts=tuple(options.allow_host),
        idle_s=_idle_s(options),
    )
    _log_to(directory, also_stderr=not options.detached)
    configs = Configs()
    agent = LazyAgent(lambda: _agent(directory, configs))
    serve.run(settings, agent, configs, report.ready, on_stopped=_leave_soon)
    return EXIT_OK


def _agent(directory: str, configs: Configs) -> Agent:
    from pathlib import Path

    from kedge.agent import agent

    return agent.Agent(data_dir=Path(directory), configure=configs.load_in_thread)


def _leave_soon() -> None:
    """P15: neither a turn nor a thread that does not end keeps the process from leaving; all that counts is written."""
    timer = threading.Timer(LINGER_S, os._exit, (EXIT_OK,))
    timer.daemon = True
    timer.start()


class Report:
    """Tells whoever waits for the server: a person at a terminal, or the client that started it through a pipe."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def ready(self, addresses: list[Address]) -> None:
        if self._fd is None:
            print(f"kedge: listening on {', '.join(map(str, addresses))}", flush=True)
        else:
            self._say("ready")

    def failed(self, why: str) -> None:
        if self._fd is None:
            complain(why)
        else:
            self._say(f"error: {why}")

    def _say(self, line: str) -> None:
        assert self._fd is not None
        try:
            os.write(self._fd, f"{line}\n".encode())
        except BrokenPipeError:
            pass  # the client that started us left; others will come
        finally:
            os.close(self._fd)
            self._fd = None


def _stop(options: argparse.Namespace, directory: str) -> int:
    """Ask the server of this data directory to leave, and wait until it is gone. No client starts another meanwhile."""
    from kedge.client import server_process
    from kedge.client.errors import ClientError, Dropped, NotAllowed
    from kedge.client.server_location import ServerLocation
    from kedge.client.server_process import OwnerProcess
    from kedge.client.transport import NoServer, Transport
    from kedge.client.waiter import Waiter

    host = options.host or os.environ.get("KEDGE_HOST")
    named = parse(host) if host else None
    # A server that listens on TCP listens on its own socket too: no token is needed there.
    where = named if isinstance(named, UnixAddress) else default_address(directory)
    wire = Transport(ServerLocation(where, directory, None, is_managed=False), Waiter(), client="kedge serve --stop")
    try:
        if not os.path.isdir(directory):
            raise NoServer("no such directory")
        with server_process.hold_spawn_lock(directory), contextlib.closing(OwnerProcess(directory)) as owner:
            wire.request("POST", "/v1/control", {"command": "shutdown"})
            server_process.wait_until_free(directory, wire.waiter, STOP_S)
            owner.wait_for_end(wire.waiter, LINGER_S + END_S)
    except NoServer:
        print(f"kedge: no server is running for {directory}")
        return EXIT_OK
    except Dropped as error:
        complain(f"the server at {where} does not answer ({error}); {os.path.join(directory, LOG_FILE)} says more")
        return EXIT_FAILED
    except ClientError as error:
        complain(one_line(error))
        return EXIT_USAGE if isinstance(error, NotAllowed) else EXIT_FAILED
    finally:
        wire.close()
    print(f"kedge: the server at {where} has stopped")
    return EXIT_OK


def _idle_s(options: argparse.Namespace) -> float | None:
    if options.idle_timeout is not None:
        return options.idle_timeout or None
    given = os.environ.get("KEDGE_IDLE_TIMEOUT")
    if given is None or not options.detached:
        return IDLE_S if options.detached else None
    try:
        return _seconds(given) or None
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"KEDGE_IDLE_TIMEOUT: {error}") from error


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def _open_error() -> type[Exception]:
    from kedge.store.errors import StoreOpenError

    return StoreOpenError


def _log_to(directory: str, *, also_stderr: bool) -> None:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        handlers: list[logging.Handler] = [PrivateLog(os.path.join(directory, LOG_FILE))]
    except OSError as error:
        raise AddressError(f"cannot use {directory} ({error.strerror}); choose another data directory") from error
    if also_stderr:
        terminal = logging.StreamHandler()
        terminal.setLevel(logging.WARNING)
        handlers.append(terminal)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=handlers)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients send wrong is answered, not logged
    logging.raiseExceptions = False  # a full disk does not make the server talk about its log


class PrivateLog(RotatingFileHandler):
    """A log that only its owner can read, also after it was rotated."""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> io.TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_private)


def _private(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)  # one from before may be open to others
    return fd


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kedge serve", description="Run the Kedge server in the foreground.")
    add: Callable[..., object] = parser.add_argument
    add("--host", metavar="ADDRESS", help="unix:///path/to.sock, or tcp://127.0.0.1:PORT beside the default socket")
    add("--data-dir", metavar="DIR", help="where state is kept (KEDGE_DATA_DIR)")
    add("--token-file", metavar="FILE", help="the token for TCP; made on first use (default: in the data directory)")
    add("--allow-remote", action="store_true", help="bind to an address that other machines reach, unencrypted")
    add(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="another NAME or HOST:PORT by which clients reach us",
    )
    add("--idle-timeout", metavar="SECONDS", type=_seconds, help="leave after that long without work; 0: never")
    add("--stop", action="store_true", help="stop the server of this data directory and wait for it")
    add("--detached", action="store_true", help=argparse.SUPPRESS)
    add("--ready-fd", type=int, help=argparse.SUPPRESS)
    return parser
