"""The `kedge` command: picks a subcommand, imports it alone, and turns whatever goes wrong into one line.

This module is on the way of every command, `kedge --version` first of all, so it imports nothing that Python has not
already loaded to start.
"""

import os
import sys

from kedge.version import VERSION

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# name -> (module with `run(argv: list[str]) -> int`, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("kedge.cli.run", "send a prompt and print the answer"),
    "runs": ("kedge.cli.runs", "list runs"),
    "attach": ("kedge.cli.attach", "follow a run that is already there"),
    "cancel": ("kedge.cli.cancel", "stop a run, or all that a session is doing"),
    "session": ("kedge.cli.session", "list, show, rename, delete, export, undo or fork sessions, choose their model"),
    "login": ("kedge.cli.login", "check and store a provider's key"),
    "logout": ("kedge.cli.logout", "forget a stored key"),
    "models": ("kedge.cli.models", "list the models that can be used, and for the rest why not"),
    "config": ("kedge.cli.config", "show and change the configuration"),
    "logs": ("kedge.cli.logs", "show the log of the server"),
    "doctor": ("kedge.cli.doctor", "check the set-up, and say how to mend it"),
    "completion": ("kedge.cli.completion", "let the shell complete commands and options"),
    "serve": ("kedge.cli.serve", "run the server in the foreground, or stop it"),
    "story": ("kedge.cli.demo", "play a story with a crash in it, and check that nothing was lost"),
}

NO_TERMINAL = "the terminal interface needs a terminal; `kedge run PROMPT` does not"

USAGE = """\
usage: kedge [OPTION ...]                        the terminal interface
       kedge [--debug] COMMAND [ARGUMENT ...]
       kedge --version | --help
"""

OPTIONS = """\
options:
  -C, --continue     go on with the session that was used last
  -s, --session ID   open this session; the beginning of its ID is enough
  -m, --model NAME   the model, as PROVIDER/NAME
      --mode MODE    plan, ask, auto-edit or yolo
  -y, --yolo         ask nothing
  -c, --cwd DIR      the workspace's directory; which server: --host, --token-file and --data-dir, as for commands
  -h, --help         show this and leave
  -V, --version      show the version and leave
      --debug        show the traceback of an error
"""


def main(argv: list[str] | None = None) -> int:
    args, is_debug = take_debug(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough (`kedge … | head`): nothing to report, and nobody to report it to.
        abandon_stdout()
        return EXIT_FAILED
    except Exception as error:  # the boundary: below it errors are raised, here they become a line
        if is_debug:
            raise
        if isinstance(error, OSError):
            abandon_stdout()
        complain(f"{one_line(error)} (--debug shows where)")
        return EXIT_FAILED
    return code


def dispatch(args: list[str]) -> int:
    match args:
        case ["-V" | "--version", *_]:
            print(f"kedge {VERSION}")
            return EXIT_OK
        case ["-h" | "--help", *_]:
            print(help_text(), end="")
            return EXIT_OK
        case [name, *rest] if name in COMMANDS:
            from importlib import import_module

            mark_terminal_output()
            module, _ = COMMANDS[name]
            return import_module(module).run(rest)
        case [name, *_] if not name.startswith("-"):
            return refuse(f"unknown command {name!r}")
        case [] if not (sys.stdin.isatty() and sys.stdout.isatty()):
            print(f"{help_text()}\nkedge: {NO_TERMINAL}", file=sys.stderr)
            return EXIT_USAGE
        case _:
            from kedge.cli.tui import run

            mark_terminal_output()
            return run(args)


def mark_terminal_output() -> None:
    """What others wrote must not drive a terminal. Imports nothing where there is none."""
    if any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        from kedge.cli.output import mark_terminal_output

        mark_terminal_output()


def take_debug(args: list[str]) -> tuple[list[str], bool]:
    """`--debug` counts wherever it stands before `--`: people append it to the command that just failed."""
    end = args.index("--") if "--" in args else len(args)
    head, tail = args[:end], args[end:]
    return [arg for arg in head if arg != "--debug"] + tail, "--debug" in head


def help_text() -> str:
    width = max(map(len, COMMANDS))
    commands = "".join(f"  {name:{width}}  {text}\n" for name, (_, text) in COMMANDS.items())
    return f"{USAGE}\ncommands:\n{commands}\n{OPTIONS}"


def refuse(why: str) -> int:
    complain(f"{why}; 'kedge --help' lists what there is")
    return EXIT_USAGE


def complain(text: str) -> None:
    print(f"kedge: {text}", file=sys.stderr)


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def abandon_stdout() -> None:
    """Without this Python flushes once more on its way out, fails again, and prints its own complaint."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
