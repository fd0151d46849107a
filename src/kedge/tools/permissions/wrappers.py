"""Commands that run another: what they run is found, so that it can be judged as if it stood alone.

`Through` says that the wrapper adds nothing of its own. `Beside` says that it does (another user, another machine, a
file): it needs leave by its own name, and what is inside is looked at only to be forbidden.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Literal

import msgspec

from kedge.tools.permissions.options import Options, dashed, names, read_options
from kedge.tools.permissions.variables import may_precede
from kedge.tools.permissions.words import UNKNOWN, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)


class Through(msgspec.Struct, frozen=True):
    words: tuple[Word, ...]
    assigned: tuple[Word, ...] = ()


class Code(msgspec.Struct, frozen=True):
    """Shell text that is run. `is_certain`: by a shell that reads it as bash does."""

    text: str
    is_certain: bool = True


class Beside(msgspec.Struct, frozen=True):
    words: tuple[Word, ...] = ()
    code: str | None = None


class _Spec(msgspec.Struct, frozen=True):
    options: Options
    skips: int = 0  # words between the options and the command
    is_own: bool = False  # it does something of its own


def _spec(
    short: str = "", valued: str = "", long: str = "", long_valued: str = "", *, skips: int = 0, own: bool = False
) -> _Spec:
    options = Options(
        short=short,
        short_valued=valued,
        long=dashed(long),
        long_valued=dashed(long_valued),
        is_counted=True,
        stops=True,
    )
    return _Spec(options, skips, own)


_SPECS: dict[str, _Spec] = {
    "timeout": _spec("v", "ks", "foreground preserve-status verbose", "kill-after signal", skips=1),
    "gtimeout": _spec("v", "ks", "foreground preserve-status verbose", "kill-after signal", skips=1),
    "nice": _spec("", "n", "", "adjustment"),
    "nohup": _spec(),
    "stdbuf": _spec("", "ioe", "", "input output error"),
    "time": _spec("plv"),
    "command": _spec(),
    "builtin": _spec(),
    "exec": _spec("cl", "a"),
    "coproc": _spec(),
    "setsid": _spec("cfw", "", "ctty fork wait"),
    "ionice": _spec("t", "cn", "ignore", "class classdata"),
    "chrt": _spec("bfior", "", "", "", skips=1),
    "taskset": _spec("a", "", "all-tasks", "", skips=1),
    "unbuffer": _spec("p"),
    "busybox": _spec(),
    "caffeinate": _spec("dimsu", "t"),
    "sudo": _spec("AbEHnPSikKs", "CDghpRrTtUu", "", "user group chdir host", own=True),
    "doas": _spec("Lns", "Cu", own=True),
    "chroot": _spec("", "", "skip-chdir", "userspec groups", skips=1, own=True),
    "flock": _spec(
        "enosuxF", "Ew", "shared exclusive nonblock unlock close verbose", "timeout wait", skips=1, own=True
    ),
    "parallel": _spec("kXmq", "jnNLaIP", "", "jobs", own=True),
    "strace": _spec("cfqtTvxy", "eopsu", own=True),
    "ltrace": _spec("cf", "eo", own=True),
    "nsenter": _spec("minpuUCr", "tSG", own=True),
    "unshare": _spec("minpuUCrf", "", own=True),
    "proxychains": _spec("q", "f", own=True),
    "runuser": _spec("", "ugG", own=True),
    "systemd-run": _spec("", "pu", "user scope pty quiet wait", own=True),
    "dbus-run-session": _spec(own=True),
    "entr": _spec("acdnprsxz", own=True),
    "direnv": _spec(skips=2, own=True),
    "npx": _spec("y", "p", "yes", "package", own=True),
    "gdb": _spec(own=True),
}
_SHELLS = names("sh bash dash ash ksh mksh zsh fish csh tcsh rbash")
_LIKE_BASH = names("sh bash dash rbash")
_OF_BASH = re.compile(r"\$'|\[\[|(?<!\$)\(\(|\{[^}]*(?:,|\.\.)")
_SHELL_OPTIONS = Options(
    short="ceuxvlnfCaBhkmpst",
    short_valued="oO",
    long=dashed("login norc noprofile posix verbose restricted"),
    stops=True,
)
_XARGS = Options(
    short="0rtxop",
    short_valued="nPLIdsE",
    long=dashed("null no-run-if-empty verbose exit open-tty interactive"),
    long_valued=dashed("max-args max-procs max-lines delimiter max-chars replace eof"),
    stops=True,
)
_WATCH = Options(
    short="bcdegtpwx",
    short_valued="n",
    long=dashed("differences no-title errexit chgexit color exec precise beep no-wrap"),
    long_valued=dashed("interval"),
    stops=True,
)
_REMOTE = names("ssh su script docker podman kubectl")
_FIND_RUNS = names("-exec -execdir -ok -okdir")
_FIND_CHOICES = names("-o -or -not ! ( ) , -L -H -follow")

Wrapped = Through | Code | Beside | Literal["unclear"] | None


def unwrap(words: Sequence[Word]) -> Wrapped:
    """What a simple command runs. None: it is no wrapper; "unclear": it is, but not written so that one can tell."""
    name = (words[0].text or "").rpartition("/")[2]
    rest = list(words[1:])
    if name == "command" and rest and rest[0].text in ("-v", "-V"):
        return None  # it only looks
    if name in _SHELLS:
        return _shell(name, rest)
    if name == "eval":
        texts = [word.text for word in rest if word.text is not None and not word.is_glob]
        code = " ".join(texts)
        return Code(code, _is_portable(code)) if len(texts) == len(rest) else "unclear"  # inside `sh -c`, too
    if name == "env":
        return _env(rest)
    if name == "xargs":
        return _xargs(rest)
    if name == "watch":
        given = read_options(rest, _WATCH)
        if given is None or any(word.text is None for word in given.rest):
            return "unclear"
        if given.has("-x", "--exec"):
            return Through(given.rest)
        code = " ".join(word.shown for word in given.rest)
        return Code(code, _is_portable(code))
    if name in _REMOTE:
        return _remote(rest)
    spec = _SPECS.get(name)
    return None if spec is None else _from_spec(name, spec, rest)


def is_of_the_system(name: str) -> bool:
    """`./env` is whatever somebody put there."""
    directory, _, _ = name.rpartition("/")
    return "/" not in name or directory in ("/bin", "/usr/bin")


def found_by_find(words: Sequence[Word]) -> tuple[tuple[Word, ...], list[tuple[Word, ...]]]:
    """`find` without -exec and its like, and the commands that those run.

    With `-type f`, `{}` is a file below the first root, and never a link: its place is taken by the root."""
    runs: list[tuple[Word, ...]] = []
    rest: list[Word] = []
    index = 0
    while index < len(words):
        if words[index].text not in _FIND_RUNS:
            rest.append(words[index])
            index += 1
            continue
        end = index + 1
        while end < len(words) and not _ends_run(words, index, end):
            end += 1
        is_elsewhere = words[index].text in ("-execdir", "-okdir")  # where its paths mean something else
        runs.append((*words[index + 1 : end], *([UNKNOWN] if is_elsewhere else [])))
        index = end + 1
    texts = [word.text for word in rest]
    before = [*takewhile(lambda word: word.text not in _FIND_RUNS, words)]
    is_typed = any(word.text == "-type" and after.text == "f" for word, after in pairwise(before))
    is_plain = is_typed and not _FIND_CHOICES & set(texts)
    roots = [*takewhile(lambda word: not (word.text or "-").startswith(("-", "!", "(")), rest[1:])] or [Word(".")]
    is_found = is_plain and not any(root.is_glob or root.text is None for root in roots)
    # As a wildcard, it is a path and never the name of a command, an option or a script.
    found = [Word(root.text, is_glob=True) for root in roots] if is_found else [UNKNOWN]
    return tuple(rest), [
        tuple(
            new for word in run for new in (found if word.text == "{}" else [UNKNOWN if "{}" in word.shown else word])
        )
        for run in runs
    ]


def _ends_run(words: Sequence[Word], start: int, at: int) -> bool:
    """`+` ends a command only after `{}`, and never one that asks first: elsewhere it is a word like others."""
    is_many = words[start].text in ("-exec", "-execdir") and words[at - 1].text == "{}"
    return words[at].text == ";" or (words[at].text == "+" and is_many)


def _from_spec(name: str, spec: _Spec, rest: list[Word]) -> Wrapped:
    given = read_options(rest, spec.options)
    if given is None:
        return Beside(tuple(_after_options(rest))) if spec.is_own else "unclear"
    inner = given.rest[spec.skips :]
    if spec.is_own:
        code = next((value.text for value in given.values("-c")), None)
        return Beside(inner, code)
    if name == "command" and not inner:
        return None
    if any(word.text is None for word in given.rest[: spec.skips]):
        return "unclear"
    return Through(inner)


def _after_options(words: list[Word]) -> list[Word]:
    index = next((at for at, word in enumerate(words) if not (word.text or "").startswith("-")), len(words))
    return words[index:]


def _shell(name: str, rest: list[Word]) -> Wrapped:
    given = read_options(rest, _SHELL_OPTIONS)
    if given is None or not given.has("-c"):
        return None  # a script, or what comes in: it runs something that nobody has read
    if not given.rest or given.rest[0].text is None or given.rest[0].is_glob:
        return "unclear"
    code = given.rest[0].text
    is_certain = name in _LIKE_BASH and (name == "bash" or _is_portable(code))
    is_plain = not given.has("-O") and all(
        value.text in ("pipefail", "errexit", "nounset") for value in given.values("-o")
    )
    return Code(code, is_certain and is_plain and not given.has("-k", "-p", "-a"))


def _is_portable(code: str) -> bool:
    """Whether a plain shell reads it as bash does: to dash, `[[ a > b ]]` writes a file, and `((x))` runs x."""
    return _OF_BASH.search(code) is None


def _env(rest: list[Word]) -> Wrapped:
    options = Options(
        short="i0v",
        short_valued="u",
        long=dashed("ignore-environment null debug"),
        long_valued=dashed("unset"),
        stops=True,
    )
    given = read_options([word for word in rest if word.text != "-"], options)
    if given is None:
        return "unclear"  # -S splits a string, -C goes elsewhere
    inner = list(given.rest)
    assigned: list[Word] = []
    while inner and inner[0].text is not None and _ASSIGNMENT.fullmatch(inner[0].text):
        assigned.append(inner.pop(0))
    if inner and inner[0].text is None:
        return "unclear"
    return Through(tuple(inner), tuple(assigned)) if inner else None


def _xargs(rest: list[Word]) -> Wrapped:
    given = read_options(rest, _XARGS)
    if given is None:
        return "unclear"
    marks = [value.text for value in given.values("-I", "--replace")]
    words = list(given.rest) or [Word("echo")]
    if None in marks:
        return "unclear"
    if marks:
        return Through(tuple(UNKNOWN if any(mark in word.shown for mark in marks if mark) else word for word in words))
    return Through((*words, UNKNOWN))


def _remote(rest: list[Word]) -> Beside:
    """Something runs elsewhere: every word may be a command of its own."""
    code = " ".join(word.shown for word in _after_options(rest)[1:] or rest)
    return Beside((), code)


def is_harmless_assignment(word: Word) -> bool:
    found = _ASSIGNMENT.fullmatch(word.text or "")
    return found is not None and may_precede(found[1])
