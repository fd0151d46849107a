"""The `kedge` command: runs a subcommand, importing only its module, and prints unexpected errors as one line.

Imports nothing that Python has not already loaded to start, so that every command starts fast.
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
    "attach": ("kedge.cli.attach", "follow a run that was started elsewhere"),
    "cancel": ("kedge.cli.cancel", "cancel a run, or all runs of a session"),
    "session": (
        "kedge.cli.session",
        "list, show, rename, delete, export, undo and fork sessions (kedge sessions: list)",
    ),
    "login": ("kedge.cli.login", "store a provider's API key"),
    "logout": ("kedge.cli.logout", "remove a stored API key"),
    "models": ("kedge.cli.models", "list available models"),
    "mcp": ("kedge.cli.mcp", "add, list, test and log in to MCP servers"),
    "import": ("kedge.cli.import_setups", "take over set-ups of Claude Code, Codex, opencode, Crush and Gemini CLI"),
    "config": ("kedge.cli.config", "show and change the configuration"),
    "logs": ("kedge.cli.logs", "show the server's log"),
    "doctor": ("kedge.cli.doctor", "check your setup and suggest fixes"),
    "completion": ("kedge.cli.completion", "print a completion script for your shell"),
    "serve": ("kedge.cli.serve", "run the server in the foreground, or stop it"),
    "story": ("kedge.cli.demo", "run a demo in which the server is killed and nothing is lost"),
}

MIN_LIKENESS = 0.7  # of a mistyped command
SESSIONS = "sessions"  # short for `kedge session list`
NO_TERMINAL = "The terminal interface needs a terminal. Without one, use 'kedge run PROMPT'"

USAGE = """\
usage: kedge [OPTION ...] ["PROMPT"]             open the terminal interface, and send a prompt
       kedge [--debug] COMMAND [ARGUMENT ...]
       kedge --version | --help
"""

OPTIONS = """\
options:
  -C, --continue     continue the most recent session
  -s, --session ID   open this session; the start of its ID is enough
  -m, --model NAME   model, as PROVIDER/NAME
      --mode MODE    what the agent may do without asking: plan, ask, auto-edit, auto or yolo
  -y, --yolo         never ask, allow everything (same as --mode yolo; also --yes)
  -c, --cwd DIR      workspace directory; choose a server with --host, --token-file and --data-dir, as for commands
  --                 all that follows is the prompt, also if it is one word or starts with a dash
  -h, --help         show this help
  -V, --version      show the version
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
        # The reader has closed the pipe (`kedge … | head`).
        abandon_stdout()
        return EXIT_FAILED
    except Exception as error:  # the boundary where errors become a line
        if is_debug:
            raise
        if isinstance(error, OSError):
            abandon_stdout()
        print_error(f"{one_line(error)} (--debug shows the traceback)")
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
        case [name, *rest] if name == SESSIONS:
            return run_module(COMMANDS["session"][0], rest if rest[:1] == ["list"] else ["list", *rest])
        case [name, *rest] if name in COMMANDS:
            return run_module(COMMANDS[name][0], rest)
        case [name, *_] if not name.startswith("-") and not is_prompt(name):
            print_error(f"{describe_unknown(name)}. See 'kedge --help'.")
            return EXIT_USAGE
        case [] if not (sys.stdin.isatty() and sys.stdout.isatty()):
            print_error(f"{NO_TERMINAL}. Piped input becomes the prompt. See 'kedge --help'.")
            return EXIT_USAGE
        case _:
            return run_module("kedge.cli.tui", args)


def is_prompt(word: str) -> bool:
    """Return whether an argument is a prompt for the interface: it has a space, as no command does."""
    return " " in word.strip()


def describe_unknown(name: str) -> str:
    from difflib import get_close_matches

    if not name.strip():
        return "The prompt is empty"
    found = get_close_matches(name, [*COMMANDS, SESSIONS], n=2, cutoff=MIN_LIKENESS)
    meant = f" Did you mean {' or '.join(repr(each) for each in found)}?" if found else ""
    return f"Unknown command {name!r}.{meant} To send it as a prompt: kedge -- PROMPT"


def run_module(module: str, args: list[str]) -> int:
    from importlib import import_module

    if any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        from kedge.cli.output import mark_terminal_output

        mark_terminal_output()
    return import_module(module).run(args)


def take_debug(args: list[str]) -> tuple[list[str], bool]:
    """Remove `--debug`, anywhere before `--`: people append it to the command that just failed."""
    end = args.index("--") if "--" in args else len(args)
    head, tail = args[:end], args[end:]
    return [arg for arg in head if arg != "--debug"] + tail, "--debug" in head


def help_text() -> str:
    width = max(map(len, COMMANDS))
    commands = "".join(f"  {name:{width}}  {text}\n" for name, (_, text) in COMMANDS.items())
    return f"{USAGE}\ncommands:\n{commands}\n{OPTIONS}"


def print_error(text: str) -> None:
    print(f"kedge: {text}", file=sys.stderr)


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def abandon_stdout() -> None:
    """Redirect standard output to /dev/null: Python flushes it at exit, and would print another error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
