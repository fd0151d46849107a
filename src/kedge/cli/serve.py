"""`kedge serve`: run the server in the foreground, or detached when a client starts it; or stop it."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import threading
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

from kedge.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, run_command
from kedge.cli.options import Options, UsageError, named, parse_seconds
from kedge.cli.output import print_error
from kedge.protocol.address import (
    LOG_FILE,
    Address,
    AddressError,
    UnixAddress,
    data_dir,
    default_address,
    open_private,
    parse,
)

if TYPE_CHECKING:
    from kedge.agent.agent import Agent
    from kedge.config.configs import Configs

HELP = """\
usage: kedge serve [OPTION ...]

Run the Kedge server in the foreground, or stop a running one.

      --host ADDRESS      also listen on tcp://127.0.0.1:PORT, or use unix:///path/to.sock instead of the default socket
      --data-dir DIR      where the server keeps its data (KEDGE_DATA_DIR)
      --token-file FILE   file with the token for TCP, created if missing (default: in the data directory)
      --allow-remote      listen on an address that other machines can reach, unencrypted
      --allow-host NAME   another NAME or HOST:PORT that clients use for this server; can be repeated
      --idle-timeout S    exit after S seconds without work; 0 means never
      --stop              stop the server of this data directory and wait until it has ended
  -h, --help              show this help
"""
FLAGS = named("--allow-remote", "--stop")
VALUES = named("--host", "--data-dir", "--token-file", "--allow-host", "--idle-timeout")
CONNECTS = False
# For the client that starts a server.
HIDDEN_FLAGS = named("--detached")
HIDDEN_VALUES = named("--ready-fd")
LOG_BYTES = 5 * 1024 * 1024
OLD_LOGS = 3
IDLE_S = 30 * 60.0  # a detached server exits after that long without work
LINGER_S = 1.0
END_S = 2.0  # for the process to end when it has nothing left to do
STOP_COMMAND_S = 20.0  # for `kedge serve --stop`: runs get 5 s (P15), their processes 3 s, and a slow disk the rest


def run(argv: list[str]) -> int:
    flags, values = {**FLAGS, **HIDDEN_FLAGS}, {**VALUES, **HIDDEN_VALUES}
    return run_command(argv, help_text=HELP, flags=flags, values=values, action=_run, connects=CONNECTS)


def _run(options: Options) -> int:
    options.check_no_words()
    options.seconds("idle-timeout")
    directory = data_dir(options.get("data-dir"))
    if options.has("stop"):
        return _stop(options, directory)
    report = Report(options.integer("ready-fd", least=0))
    try:
        return _serve(options, directory, report)
    except (AddressError, UsageError, OSError, _store_open_error()) as error:
        logging.getLogger(__name__).info("not started: %s", error)
        report.fail(str(error) or type(error).__name__)
        return EXIT_USAGE


def _serve(options: Options, directory: str, report: Report) -> int:
    gc.disable()  # until the agent is loaded: imports make objects that stay
    from kedge.agent.lazy_agent import LazyAgent
    from kedge.config.configs import Configs
    from kedge.server import serve

    host = options.get("host")
    if host is None and not options.has("detached"):
        host = os.environ.get("KEDGE_HOST") or None
    settings = serve.Settings(
        data_dir=directory,
        host=None if host is None else parse(host),
        token=os.environ.get("KEDGE_TOKEN", "").strip() or None,
        token_file=options.get("token-file"),
        allow_remote=options.has("allow-remote"),
        allowed_hosts=tuple(options.all("allow-host")),
        idle_s=_read_idle_s(options),
    )
    _set_up_log(directory, also_stderr=not options.has("detached"))
    configs = Configs()
    agent = LazyAgent(lambda: _make_agent(directory, configs))
    serve.run(settings, agent, configs, report.announce, on_stopped=_exit_soon)
    return EXIT_OK


def _make_agent(directory: str, configs: Configs) -> Agent:
    from pathlib import Path

    from kedge.agent import agent

    return agent.Agent(data_dir=Path(directory), configure=configs.load_in_thread)


def _exit_soon() -> None:
    """Exit even if a turn or a thread does not end (P15): everything that matters is written."""
    timer = threading.Timer(LINGER_S, os._exit, (EXIT_OK,))
    timer.daemon = True
    timer.start()


class Report:
    """Reports that the server is ready or why not: on the terminal, or through a pipe to the client that started it."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def announce(self, addresses: list[Address]) -> None:
        if self._fd is None:
            print(f"kedge: listening on {', '.join(map(str, addresses))}", flush=True)
        else:
            self._send("ready")

    def fail(self, message: str) -> None:
        if self._fd is None:
            print_error(message, EXIT_USAGE)
        else:
            self._send(f"error: {' '.join(message.split())}")

    def _send(self, line: str) -> None:
        assert self._fd is not None
        try:
            os.write(self._fd, f"{line}\n".encode("utf-8", "backslashreplace"))
        except BrokenPipeError:
            pass  # the client that started this server is gone
        finally:
            os.close(self._fd)
            self._fd = None


def _stop(options: Options, directory: str) -> int:
    """Stop the server of this data directory and wait until it has ended. No client starts another meanwhile."""
    from kedge.client import server_process
    from kedge.client.environment import ServerLocation
    from kedge.client.errors import ClientError, Dropped, NotAllowed
    from kedge.client.reconnect import Waiter
    from kedge.client.server_process import OwnerProcess
    from kedge.client.transport import NoServer, Transport

    host = options.get("host") or os.environ.get("KEDGE_HOST")
    given = parse(host) if host else None
    # A server that listens on TCP also listens on its Unix socket, which needs no token.
    address = given if isinstance(given, UnixAddress) else default_address(directory)
    transport = Transport(
        ServerLocation(address, directory, None, is_managed=False), Waiter(), client="kedge serve --stop"
    )
    try:
        if not os.path.isdir(directory):
            raise NoServer("no such directory")
        with server_process.hold_spawn_lock(directory), contextlib.closing(OwnerProcess(directory)) as owner:
            transport.request("POST", "/v1/control", {"command": "shutdown"})
            server_process.wait_until_free(directory, transport.waiter, STOP_COMMAND_S)
            owner.wait_for_end(transport.waiter, LINGER_S + END_S)
    except NoServer:
        print(f"kedge: No server is running for {directory}.")
        return EXIT_OK
    except Dropped as error:
        log = os.path.join(directory, LOG_FILE)
        return print_error(f"The server at {address} does not answer ({error}). See {log}.", EXIT_FAILED)
    except ClientError as error:
        return print_error(str(error), EXIT_USAGE if isinstance(error, NotAllowed) else EXIT_FAILED)
    finally:
        transport.close()
    print(f"kedge: The server at {address} has stopped.")
    return EXIT_OK


def _read_idle_s(options: Options) -> float | None:
    """Seconds without work after which the server exits; None: never. The variable is for detached servers only."""
    seconds = options.seconds("idle-timeout")
    if seconds is None and options.has("detached"):
        variable = os.environ.get("KEDGE_IDLE_TIMEOUT")
        seconds = IDLE_S if variable is None else parse_seconds(variable, "KEDGE_IDLE_TIMEOUT")
    return seconds or None


def _store_open_error() -> type[Exception]:
    from kedge.store.errors import StoreOpenError

    return StoreOpenError


def _set_up_log(directory: str, *, also_stderr: bool) -> None:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        handlers: list[logging.Handler] = [PrivateLog(os.path.join(directory, LOG_FILE))]
    except OSError as error:
        raise AddressError(f"Could not use {directory} ({error.strerror}). Choose another data directory.") from error
    if also_stderr:
        terminal = logging.StreamHandler()
        terminal.setLevel(logging.WARNING)
        handlers.append(terminal)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=handlers)
    logging.raiseExceptions = False  # on a full disk, logging does not print tracebacks


class PrivateLog(RotatingFileHandler):
    """A log that only its owner can read, also after rotation."""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> io.TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_private)
