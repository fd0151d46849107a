"""Commands that run other commands: `timeout 5 make`, `xargs grep x`, `sh -c '…'`, `sudo …`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from kedge.tools.permissions.shell import UNKNOWN, Command, Word, names

# Words between a wrapper and its command: options, durations, priorities, signals, NAME=value, `{}`.
_BETWEEN = re.compile(r"-.*|\+?\d[\d.,:x-]*[smhd]?|[A-Z][A-Z0-9]*|[A-Za-z_]\w*=.*|\{\}", re.DOTALL)
# They run the command without adding effects of their own.
_TRANSPARENT = names(
    "timeout gtimeout nice nohup stdbuf time command builtin exec setsid ionice chrt taskset unbuffer busybox"
    " caffeinate env xargs watch coproc"
)
# They run it as another user, on another machine, with a terminal, under a lock …: they need approval themselves.
_POWERFUL = names(
    "sudo doas su ssh chroot flock parallel strace ltrace nsenter unshare proxychains runuser systemd-run setpriv"
    " dbus-run-session entr direnv npx bunx uvx pipx gdb script sg prlimit setarch linux64 choom ssh-agent fakeroot"
    " chronic rlwrap capsh docker podman kubectl expect at batch crontab trap source ."
)
_SHELLS = names("sh bash dash ash ksh mksh zsh fish csh tcsh rbash")
_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})  # of find

# The form of a wrapper that lets a rule apply to the command behind it: options with their values.
_PLAIN_FORMS: dict[str, re.Pattern[str]] = {
    "timeout": re.compile(
        r"(?:(?:--foreground|--preserve-status|-v|-k \d+[smhd]?|-s [A-Z0-9]+) )*\d+(?:\.\d+)?[smhd]? "
    ),
    "nice": re.compile(r"(?:-n -?\d+ )?"),
    "nohup": re.compile(""),
    "time": re.compile("(?:-p )?"),
    "command": re.compile(""),
    "stdbuf": re.compile(r"(?:-[ioe][L0-9]+ )+"),
    "env": re.compile(r"(?:[A-Za-z_]\w*=\S* )*"),
}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MODULE_OPTION = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)", re.DOTALL)
_PYTHON_OPTION = re.compile(r"-[bBdEiIOPqRsSuvx]*(?:[WX].*)?|--check-hash-based-pycs=?\w*", re.DOTALL)
_MAX_OWN_WORDS = 12
_MAX_WRAPPERS = 8
_MAX_SUFFIXES = 200
# Variables that may precede any command: they only change how output looks.
_HARMLESS_VARIABLE = re.compile(
    r"(?:LC_\w+|LANG|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|CI|COLUMNS|LINES|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE"
    r"|RUST_BACKTRACE)=[\w.,:@+-]*",
    re.ASCII,
)
# Variables that change which program runs, or what a program does.
_POWERFUL_VARIABLE = re.compile(
    r"(?:PATH|HOME|IFS|ENV|SHELL\w*|CDPATH|GLOBIGNORE|BASH\w*|PROMPT_COMMAND|PS\d|LD_\w+|DYLD_\w+|GIT_\w+|PYTHON\w*"
    r"|NODE_\w+|RUBY\w*|PERL\w*|JAVA_\w+|\w*PAGER|\w*EDITOR|LESS\w*|MAGIC|TERMINFO\w*|XDG_\w+|LANGUAGE|TEXTDOMAIN\w*)"
    r"(?:\[.*\])?\+?=.*",
    re.ASCII | re.DOTALL,
)
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset", "env"})


def is_harmless_variable(word: Word) -> bool:
    return word.text is not None and _HARMLESS_VARIABLE.fullmatch(word.text) is not None


def sets_powerful_variable(command: Command) -> bool:
    words = command.words[1:] if command.words and command.words[0].text in _DECLARES else ()
    return any(is_powerful_variable(word) for word in (*command.assigned, *words))


def is_powerful_variable(word: Word) -> bool:
    return _POWERFUL_VARIABLE.fullmatch(word.shown) is not None


def strip_plain_wrappers(command: Command) -> tuple[Command, list[str]]:
    """The command behind plainly written `timeout 60`, `nice -n 5`, `env A=b` …, and the names of those wrappers."""
    words, assigned, stripped = command.words, command.assigned, list[str]()
    while len(stripped) < _MAX_WRAPPERS:
        form = _PLAIN_FORMS.get(_base_name(words[0]) if _is_system_name(words[0].shown) else "")
        own = [word.shown for word in takewhile(_is_plain_word, words[1:-1][:_MAX_OWN_WORDS])]
        if form is None or len(words) < 2:
            break
        lengths = [n for n in range(len(own) + 1) if form.fullmatch("".join(f"{word} " for word in own[:n]))]
        if not lengths:
            break
        stripped.append(words[0].shown)
        assigned += words[1 : max(lengths) + 1] if words[0].shown.endswith("env") else ()
        words = words[max(lengths) + 1 :]
    return Command(words, assigned), stripped


def strip_bin(name: str) -> str:
    """`/bin/ls` and `/usr/bin/ls` are `ls`."""
    return name.removeprefix("/usr").removeprefix("/bin/")


def _is_plain_word(word: Word) -> bool:
    return word.is_literal and " " not in word.shown


def _is_system_name(name: str) -> bool:
    directory, _, _ = name.rpartition("/")
    return "/" not in name or directory in ("/bin", "/usr/bin")


def _base_name(word: Word) -> str:
    return word.shown.rpartition("/")[2]


def unwrap(command: Command) -> tuple[list[Command], list[str]] | None:
    """The commands and shell texts that a transparent wrapper runs; None if it is no wrapper or cannot be parsed."""
    words = command.words
    name = strip_bin(words[0].shown)
    if name == "find":
        return _unwrap_find(words)
    if name == "command" and len(words) > 1 and words[1].text in ("-v", "-V"):
        return [], []  # it only looks up names
    if name in _SHELLS:
        at = next((i for i, word in enumerate(words) if re.fullmatch(r"-\w*c", word.shown)), None)
        code = None if at is None or at + 1 >= len(words) else words[at + 1].text
        return None if code is None else ([], [code])
    if name == "eval":
        texts = [word.text for word in words[1:] if word.text is not None and not word.is_glob]
        return ([], [" ".join(texts)]) if len(texts) == len(words) - 1 else None
    if name not in _TRANSPARENT:
        return None
    rest = list(words[1:])
    while rest and _BETWEEN.fullmatch(rest[0].shown):
        rest.pop(0)
    if rest and rest[0].text is None:
        return None
    if rest:
        return [Command(tuple(rest), command.assigned)], []
    return ([], []) if name in ("xargs", "exec", "time") else None


def _unwrap_find(words: Sequence[Word]) -> tuple[list[Command], list[str]] | None:
    if not any(word.text in _RUNS for word in words):
        return None
    plain: list[Word] = []
    runs: list[list[Word]] = []
    in_run = False
    for word in words:
        if in_run:
            if word.text in (";", "+"):
                in_run = False
            else:
                runs[-1].append(Word(None, is_one=True) if "{}" in word.shown else word)
        elif word.text in _RUNS:
            in_run = True
            runs.append([])
        else:
            plain.append(word)
    return [Command(tuple(each)) for each in (plain, *runs) if each], []


def find_possible_commands(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    """All commands that a command may run, for deny rules: itself, and the words behind any wrapper from any start."""
    yield words
    name = _base_name(words[0])
    if name in ("xargs", "parallel"):  # the input becomes words
        words = (*(UNKNOWN if re.search(r"[{}%]|:::", word.shown) else word for word in words), UNKNOWN)
    if len(words) > _MAX_SUFFIXES:
        yield (UNKNOWN,)
    is_wrapper = name in _TRANSPARENT | _POWERFUL | _SHELLS | {"find", "eval"}
    if "/" in words[0].shown:
        yield (Word(name), *words[1:])
    if name.startswith("git-"):
        yield (Word("git"), Word(name.removeprefix("git-")), *words[1:])
    if _runs_unknown_code(name, words):
        yield (UNKNOWN,)
    if _PYTHON.fullmatch(name) and (module := _find_module(words)):
        yield (Word("python"), Word("-m"), *module)
        yield module  # `python -m pip install x` is `pip install x`
    if is_wrapper:
        for start in range(1, min(len(words), _MAX_SUFFIXES)):
            word = words[start]
            if word.text is not None and re.fullmatch(r"[\w./-]+", word.text) and not word.text.startswith("-"):
                base = word.text.rpartition("/")[2]
                yield (Word(base), *words[start + 1 :])


def _find_module(words: Sequence[Word]) -> Sequence[Word]:
    """The module that Python runs (`-m`), whatever options come before it, and its arguments; empty if it runs none."""
    at = 1
    while at < len(words):
        option = words[at].shown
        if (found := _MODULE_OPTION.fullmatch(option)) is not None:
            return (Word(found[1]), *words[at + 1 :]) if found[1] else words[at + 1 :]
        if not _PYTHON_OPTION.fullmatch(option):
            break
        at += 2 if option.endswith(("W", "X", "pycs")) else 1
    return ()


def _runs_unknown_code(name: str, words: Sequence[Word]) -> bool:
    """Whether it is a shell that runs a file, its input or an unknown text, or git with an alias."""
    if name == "git":
        return any("alias." in word.shown.lower() for word in words)
    if name in ("source", ".") or (name == "eval" and any(word.text is None for word in words)):
        return True
    if name not in _SHELLS or [word.text for word in words[1:]] == ["--version"]:
        return False
    at = next((i for i, word in enumerate(words) if re.fullmatch(r"-\w*c", word.shown)), None)
    return at is None or at + 1 >= len(words) or words[at + 1].text is None


def find_possible_code(words: Sequence[Word]) -> Iterator[str]:
    """The words of a wrapper that may be shell text."""
    if _base_name(words[0]) in _TRANSPARENT | _POWERFUL | _SHELLS | {"find", "eval"}:
        for word in words[1:]:
            if word.text is not None and re.search(r"[\s;&|<>()`$]", word.text):
                yield word.text.removeprefix("-S")
