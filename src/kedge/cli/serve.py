"""`kedge serve`: the server in the foreground; also what a client starts, detached, when there is none."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable

from kedge.protocol.address import LOG_FILE, Address, AddressError, data_dir, parse

LOG_BYTES = 5 * 1024 * 1024
OLD_LOGS = 3
IDLE_S = 30 * 60.0  # a detached server leaves after that long without work


def run(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    directory = data_dir(options.data_dir)
    if options.stop:
        return _stop(directory, options.host)
    report = Report(options.ready_fd)
    try:
        return _serve(options, directory, report)
    except (AddressError, _open_error()) as error:
        report.failed(str(error))
        return 2


def _serve(options: argparse.Namespace, directory: str, report: Report) -> int:
    from kedge.agent.agent import Agent
    from kedge.server import serve

    os.makedirs(directory, mode=0o700, exist_ok=True)
    _log_to(os.path.join(directory, LOG_FILE), also_stderr=not options.detached)
    host = options.host or (None if options.detached else os.environ.get("KEDGE_HOST"))
    settings = serve.Settings(
        data_dir=directory,
        host=parse(host) if host else None,
        token=os.environ.get("KEDGE_TOKEN"),
        token_file=options.token_file,
        allow_remote=options.allow_remote,
        allowed_hosts=tuple(options.allow_host),
        idle_s=_idle_s(options),
    )
    serve.run(settings, Agent(), report.ready)
    return 0


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
            print(f"kedge: {why}", file=sys.stderr)
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


def _stop(directory: str, host: str | None) -> int:
    raise NotImplementedError


def _idle_s(options: argparse.Namespace) -> float | None:
    if options.idle_timeout is not None:
        return options.idle_timeout or None
    given = os.environ.get("KEDGE_IDLE_TIMEOUT")
    if given is not None and options.detached:
        return _seconds(given) or None
    return IDLE_S if options.detached else None


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


def _log_to(path: str, *, also_stderr: bool) -> None:
    from logging.handlers import RotatingFileHandler

    file = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8")
    os.chmod(path, 0o600)
    handlers: list[logging.Handler] = [file]
    if also_stderr:
        terminal = logging.StreamHandler()
        terminal.setLevel(logging.WARNING)
        handlers.append(terminal)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=handlers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kedge serve", description="Run the Kedge server in the foreground.")
    add: Callable[..., object] = parser.add_argument
    add("--host", metavar="ADDRESS", help="unix:///path/to.sock, or tcp://127.0.0.1:PORT beside the default socket")
    add("--data-dir", metavar="DIR", help="where state is kept (KEDGE_DATA_DIR)")
    add("--token-file", metavar="FILE", help="the token for TCP; made on first use (default: in the data directory)")
    add("--allow-remote", action="store_true", help="bind to an address that other machines reach, unencrypted")
    add("--allow-host", metavar="NAME", action="append", default=[], help="another name that clients may call us by")
    add("--idle-timeout", metavar="SECONDS", type=_seconds, help="leave after that long without work; 0: never")
    add("--stop", action="store_true", help="stop the server of this data directory and wait for it")
    add("--detached", action="store_true", help=argparse.SUPPRESS)
    add("--ready-fd", type=int, help=argparse.SUPPRESS)
    return parser
