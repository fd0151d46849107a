"""Commands that only read: an exact table and a loose one.

`find_exact_reads` is for commands that may run without a sandbox: it accepts only options known to be harmless, and
words that are paths or plain text. `find_loose_reads` is for commands that run in the read-only sandbox: it rejects
what obviously writes, so that the user is asked at once; the sandbox keeps the rest from changing anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kedge.tools.permissions import git
from kedge.tools.permissions.shell import Command, Word, names

Reads = tuple[Word, ...]  # words that may be paths
HERE = Word(".")
_FILTERS = names("grep egrep fgrep head tail sort uniq wc cut tr nl tac")
_LISTING = names("ls du df tree find stat file realpath readlink echo printf basename dirname cd")


class _Exact(msgspec.Struct, frozen=True):
    flags: str = ""  # short options; a number or punctuation may follow them as a value
    options: frozenset[str] = frozenset()  # whole words that begin with a dash, up to a `=`
    most: int | None = None  # number of words that are not options
    has_paths: bool = True  # its words are paths
    has_pattern: bool = False  # its first word is a pattern, the others paths
    reads_here: bool = False  # without a path it reads the current directory


def _exact(
    flags: str = "",
    options: str = "",
    most: int | None = None,
    *,
    paths: bool = True,
    pattern: bool = False,
    here: bool = False,
) -> _Exact:
    return _Exact(flags, frozenset(options.split()), most, paths, pattern, here)


_GREP = _exact(
    "abcEFGhHiIlLnoqrsvwxzPZABCm",
    "--color --include --exclude --exclude-dir --count --ignore-case --line-number --recursive --word-regexp --text"
    " --files-with-matches --only-matching --invert-match --fixed-strings --extended-regexp --max-count",
    pattern=True,
    here=True,
)
_SUM = _exact("bt")
_PREDICATES = "-a -d -e -f -g -h -k -n -p -r -s -u -w -x -z -L -S -eq -ne -lt -le -gt -ge -nt -ot -ef"

_EXACT: dict[str, _Exact] = {
    ":": _exact(paths=False),
    "arch": _exact(most=0),
    "basename": _exact("az", paths=False),
    "cat": _exact("AbeEnstTuv"),
    "cd": _exact(most=1),
    "cmp": _exact("bls", most=2),
    "comm": _exact("123z", most=2),
    "cut": _exact("snzbcdf"),
    "df": _exact("aHhiklmPT"),
    "dirname": _exact("z", paths=False),
    "du": _exact("0abchklmsSxd", "--max-depth --exclude --summarize --human-readable --apparent-size", here=True),
    "echo": _exact("neE", paths=False),
    "egrep": _GREP,
    "false": _exact(paths=False),
    "fgrep": _GREP,
    "file": _exact("bhikNr0", "--brief --mime-type"),
    "find": _exact(
        options="-name -iname -path -ipath -type -size -mtime -mmin -newer -maxdepth -mindepth -perm -empty -print"
        " -print0 -prune -not -a -o -or -and -regex -iregex -ls -user -group",
        here=True,
    ),
    "grep": _GREP,
    "head": _exact("qvznc", "--lines --bytes"),
    "id": _exact("gGnruz", paths=False),
    "ls": _exact(
        "1aAbBcCdFfgGhiklmnNopqQrRsStTuUvxXZ",
        "--all --almost-all --color --directory --full-time --human-readable --recursive --reverse --size --sort --time"
        " --time-style --group-directories-first",
        here=True,
    ),
    "md5sum": _SUM,
    "nl": _exact("pbdfhilnsvw"),
    "nproc": _exact(options="--all", most=0),
    "pwd": _exact("LP", most=0),
    "readlink": _exact("femnqsvz"),
    "realpath": _exact("emsqzLP"),
    "rg": _exact(
        "aciFHIlnNopPqsSuvwxABCgmtT",
        "--count --files-with-matches --fixed-strings --glob --hidden --ignore-case --iglob --line-number --no-heading"
        " --no-ignore --only-matching --sort --type --type-not --word-regexp --max-count --max-depth --context --json",
        pattern=True,
        here=True,
    ),
    "seq": _exact("wfs", paths=False),
    "sha1sum": _SUM,
    "sha256sum": _SUM,
    "sha512sum": _SUM,
    "sort": _exact("bcCdfghiMmnRrsuVzkt", "--reverse --unique --numeric-sort --key --field-separator"),
    "stat": _exact("tfc", "--format --printf"),
    "tac": _exact("brs"),
    "tail": _exact("qvznc", "--lines --bytes"),
    "test": _exact(options=_PREDICATES, paths=False),
    "tr": _exact("cCdst", paths=False),
    "tree": _exact("adfiphsugDFqNrtUcvACnJXLPI", "--dirsfirst --noreport --prune --gitignore", here=True),
    "true": _exact(paths=False),
    "type": _exact("afptP", paths=False),
    "uname": _exact("asnrvmpio", most=0),
    "uniq": _exact("cdDiuz", most=1),
    "wc": _exact("cmlLw"),
    "which": _exact("as", paths=False),
    "whoami": _exact(most=0),
}
# A script that prints or deletes lines by their number.
_SED_LINES = re.compile(r"(?:\d+|\$)(?:,(?:\d+|\$))?[pdq=](?:; ?(?:\d+|\$)(?:,(?:\d+|\$))?[pdq=])*")
# Conversions that only print; `%n` would write to a variable.
_PRINTF_FORMAT = re.compile(r"(?:[^%]|%%|%[-+ #0]*\d*(?:\.\d+)?[sdiouxXeEfgGcbq])*")
_PS_WORDS = re.compile(r"a?u?x?w{0,2}|-[eAfFlwp]+|\d+")
# They read mounts and processes, which the sandbox hides.
NEEDS_PROC = names("df ps")
# `NAME --version` does not depend on the files of a repository, unlike that of npm and others.
_VERSIONED = names("python python3 node ruby perl php java javac gcc g++ clang cc make cmake bash zsh git rg jq uv")
# The same, only in the sandbox.
_VERSIONED_LOOSELY = _VERSIONED | names(
    "npm deno bun gem docker kubectl pip pip3 ruff mypy pyright tsc eslint terraform helm gh"
)


def find_exact_reads(words: Sequence[Word]) -> Reads | None:
    """The paths that a command reads if it certainly does nothing else; None otherwise, or if a word is not literal."""
    if not all(word.is_literal and word.text is not None for word in words):
        return None
    name, *texts = [word.text or "" for word in words]
    if _is_version_query(name, texts, _VERSIONED):
        return ()
    if name == "git":
        return git.find_exact_reads(texts)
    if name == "sed":
        files = texts[2:]
        is_plain = texts[:1] == ["-n"] and len(texts) > 1 and _SED_LINES.fullmatch(texts[1]) is not None
        return tuple(map(Word, files)) if is_plain and not any(file.startswith("-") for file in files) else None
    if name == "date":
        return () if all(re.fullmatch(r"\+.*|-u|-R|-I\w*", text) for text in texts) else None
    if name == "printf":
        return () if texts and not texts[0].startswith("-") and _PRINTF_FORMAT.fullmatch(texts[0]) else None
    if name == "ps":
        return () if all(_PS_WORDS.fullmatch(text) for text in texts) else None
    known = _EXACT.get(name)
    return None if known is None else _find_exact_paths(known, texts)


def _find_exact_paths(known: _Exact, texts: Sequence[str]) -> Reads | None:
    plain: list[str] = []
    paths: list[str] = []
    flags = re.compile(rf"-[{re.escape(known.flags)}]+[\d,:;.+-]*|-\d+" if known.flags else r"(?!)")
    for text in texts:
        if text == "--":
            return None  # it may be an option's value, and for some commands the rest are not paths
        if not text.startswith("-") or text == "-":
            plain.append(text)
            continue
        name, equals, value = text.partition("=")
        if name in known.options:
            paths += [value] if equals else []
        elif not flags.fullmatch(text):
            return None
    if known.most is not None and len(plain) > known.most:
        return None
    if not known.has_paths:
        return ()
    paths += plain[1:] if known.has_pattern else plain
    if known.reads_here and len(plain) <= known.has_pattern:
        paths.append(".")
    return tuple(Word(path) for path in paths if path != "-")


# Options that obviously write, and the most words a command may have without writing.
_WRITES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for names, pattern in (
        ("sort shuf iconv", r"-[a-zA-Z]*o.*|--o.*"),
        ("tree", r"-o.*"),
        ("find fd fdfind", r"-delete|-fprint.*|-fls|-ok|-okdir|-x|-X|--exec.*"),
        ("sed yq perl", r"-[a-zA-Z]*i.*|--in.*"),
        ("awk gawk mawk nawk", r"-i.*|--include.*"),
        ("date", r"-s.*|--s.*|[^+-].*"),
        ("hostname", r"[^-].*|-[bF].*"),
        ("rg", r"--pre|--pre=.*"),
        ("file", r"-C|--compile"),
        ("tar bsdtar", r"-?[a-zA-Z]*[xcruA][a-zA-Z]*|--(?:extract|get|create|append|update|delete|to-command).*"),
        ("unzip", r"-[^lZtv].*"),
        ("jq", r"-i"),
    )
    for name in names.split()
}
_MOST_WORDS = {"uniq": 1, "xxd": 1, "hostname": 0, "base64": 1}
_READERS = frozenset({*_EXACT, *_WRITES}) - {"perl", *NEEDS_PROC} | names(
    "b2sum cksum column diff expand fold hexdump od paste rev sha224sum sha384sum shasum sleep strings unexpand join"
    " tsort factor numfmt bc dc expr look zcat zgrep xxd base64 uptime free tty locale getconf groups printf [ read"
    " exit return break continue shift wait set let export declare local readonly typeset unset shopt pushd popd"
    " dirs getopts"
)
_TEXT_ONLY = frozenset(name for name, known in _EXACT.items() if not known.has_paths) | names(
    "printf [ read exit return expr let export declare local readonly typeset unset set sleep factor bc"
)
_PATTERN_FIRST = names("grep egrep fgrep zgrep rg ag sed awk gawk mawk nawk jq yq fd fdfind look")


def find_loose_reads(words: Sequence[Word]) -> Reads | None:
    """The words that may be paths, of a command that may run in the read-only sandbox; None for any other."""
    name = words[0].text
    if name is None or words[0].is_glob:
        return None
    texts = [word.shown for word in words[1:]]
    if _is_version_query(name, texts, _VERSIONED_LOOSELY) or [name, *texts] in (
        ["go", "version"],
        ["java", "-version"],
    ):
        return ()
    if name == "git":
        return git.find_loose_reads(words[1:])
    if name not in _READERS:
        return None
    writes = _WRITES.get(name)
    if writes is not None and any(writes.fullmatch(text) for text in texts):
        return None
    plain = [word for word in words[1:] if not word.shown.startswith("-")]
    if len(plain) > _MOST_WORDS.get(name, len(plain)):
        return None
    if name in _TEXT_ONLY:
        return ()
    has_pattern = name in _PATTERN_FIRST and not any(re.match(r"-[ef]|--(?:regexp|file)", text) for text in texts)
    values = [Word(text.partition("=")[2]) for text in texts if text.startswith("--") and "=" in text]
    return (*(plain[1:] if has_pattern else plain), *values) or (HERE,)


def _is_version_query(name: str, texts: Sequence[str], programs: frozenset[str]) -> bool:
    if name not in programs:
        return False
    return (
        [*texts] == ["--version"]
        or (name in ("python", "python3", "pip", "pip3", "uv") and [*texts] == ["-V"])
        or (name in ("node", "npm") and [*texts] == ["-v"])
    )


def reads_files(command: Command) -> bool:
    """Whether a reading command prints the contents of files, and not only their names."""
    name = command.words[0].shown.rpartition("/")[2]
    if name == "git":
        return git.shows_contents([word.shown for word in command.words[1:]])
    return name not in _LISTING


def is_filter(command: Command) -> bool:
    """Whether a command of a pipeline reads only its input, and no file."""
    reads = find_exact_reads(command.words) if command.words[0].text in _FILTERS else None
    return reads is not None and all(word == HERE or (word.text or "").isdecimal() for word in reads)
