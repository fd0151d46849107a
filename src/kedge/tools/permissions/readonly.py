"""Commands that are known to change nothing: which they are, with which options, and what they read.

Only what is listed is known. An option that is missing here costs a question, one too many could cost a file: so
nothing is here that writes, runs another program, follows links out of a directory, or shows the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kedge.tools.permissions import git, special
from kedge.tools.permissions.options import Options, dashed, names, read_options
from kedge.tools.permissions.special import HERE, Reads
from kedge.tools.permissions.words import Word


class Known(msgspec.Struct, frozen=True):
    options: Options
    paths_from: int | None = 0  # the first word (after the options) that is a path; None: none is
    reads_here: bool = False  # without a path it reads where it is
    most: int | None = None  # words after the options; a further one would be written to
    path_options: tuple[str, ...] = ()  # whose values are paths
    pattern_options: tuple[str, ...] = ()  # with one of them, the first word is a path, too
    recursive: tuple[str, ...] = ()  # with one of them it reads where it is


def _known(
    short: str = "",
    valued: str = "",
    long: str = "",
    long_valued: str = "",
    *,
    optional: str = "",
    counted: bool = False,
    paths_from: int | None = 0,
    reads_here: bool = False,
    most: int | None = None,
    path_options: str = "",
    pattern_options: str = "",
    recursive: str = "",
) -> Known:
    options = Options(
        short=short,
        short_valued=valued,
        long=dashed(long + " help version"),
        long_valued=dashed(long_valued),
        long_optional=dashed(optional),
        is_counted=counted,
    )
    return Known(
        options,
        paths_from=paths_from,
        reads_here=reads_here,
        most=most,
        path_options=tuple(path_options.split()),
        pattern_options=tuple(pattern_options.split()),
        recursive=tuple(recursive.split()),
    )


_GREP = _known(
    "abcEFGhHiILlnoqrsvwxyzPZU",
    "ABCefm",
    "basic-regexp extended-regexp fixed-strings perl-regexp ignore-case no-ignore-case word-regexp line-regexp count"
    " files-with-matches files-without-match only-matching quiet silent no-messages line-number with-filename"
    " no-filename null invert-match recursive text byte-offset initial-tab null-data line-buffered",
    "regexp file max-count after-context before-context context include exclude exclude-dir exclude-from label"
    " binary-files devices",
    optional="color colour",
    counted=True,
    paths_from=1,
    path_options="-f --file --exclude-from",
    pattern_options="-e --regexp -f --file",
    recursive="-r --recursive",
)
_SUM = _known("bt", "", "binary text tag zero")
_NOTHING = _known(paths_from=None, most=0)

TABLE: dict[str, Known] = {
    "ls": _known(
        "1aAbBcCdFfgGhiklmnNopqQrRsStTuUvxXZ",
        "",
        "all almost-all escape directory classify human-readable si inode numeric-uid-gid no-group size recursive"
        " reverse"
        " full-time group-directories-first literal quote-name hide-control-chars show-control-chars file-type",
        "ignore hide width block-size sort time time-style format indicator-style quoting-style tabsize",
        optional="color hyperlink",
        reads_here=True,
    ),
    "cat": _known(
        "AbeEnstTuv", "", "show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting"
    ),
    "head": _known("qvz", "nc", "quiet silent verbose zero-terminated", "lines bytes", counted=True),
    "tail": _known(
        "fFqvzr", "ncs", "follow quiet silent verbose retry zero-terminated", "lines bytes pid", counted=True
    ),
    "wc": _known("cmlLw", "", "bytes chars lines max-line-length words"),
    "nl": _known("p", "bdfhilnsvw", "", "body-numbering number-width number-separator starting-line-number"),
    "tac": _known("br", "s", "before regex", "separator"),
    "rev": _known(),
    "cut": _known(
        "snz", "bcdf", "complement only-delimited zero-terminated", "bytes characters delimiter fields output-delimiter"
    ),
    "paste": _known("sz", "d", "serial zero-terminated", "delimiters"),
    "fold": _known("bs", "w", "bytes spaces", "width"),
    "expand": _known("i", "t", "initial", "tabs"),
    "column": _known("tenx", "socNR", "table json", "separator output-separator table-columns"),
    "tr": _known("cCdst", "", "complement delete squeeze-repeats truncate-set1", paths_from=None),
    "sort": _known(
        "bcCdfghiMmnRrsuVz",
        "kt",
        "ignore-leading-blanks dictionary-order ignore-case general-numeric-sort human-numeric-sort month-sort"
        " numeric-sort random-sort reverse version-sort merge stable unique zero-terminated",
        "key field-separator sort",
        optional="check",
    ),
    "uniq": _known(
        "cdDiuz",
        "fsw",
        "count repeated ignore-case unique zero-terminated",
        "skip-fields skip-chars check-chars",
        most=1,
    ),
    "comm": _known("123z", "", "check-order nocheck-order total zero-terminated", "output-delimiter", most=2),
    "diff": _known(
        "abBcdeEiNnpqrstuwyZ",
        "CUWxI",
        "text ignore-space-change ignore-blank-lines ignore-all-space ignore-case brief report-identical-files new-file"
        " recursive side-by-side suppress-common-lines minimal unified context expand-tabs left-column"
        " strip-trailing-cr show-c-function",
        "exclude label width ignore-matching-lines",
        optional="color unified context",
        counted=True,
    ),
    "cmp": _known("bls", "in", "print-bytes verbose silent quiet", "bytes ignore-initial", most=2),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _known(
        "aciFHhIlnNopPqsSUuvVwx.0",
        "ABCEefgjmMrtTd",
        "after before count count-matches files files-with-matches files-without-match fixed-strings hidden ignore-case"
        " smart-case case-sensitive line-number no-line-number line-regexp word-regexp only-matching pcre2 quiet"
        " vimgrep"
        " heading no-heading json null multiline multiline-dotall no-ignore no-ignore-vcs no-filename with-filename"
        " invert-match trim stats type-list unrestricted no-messages no-config column no-column text"
        " glob-case-insensitive",
        "after-context before-context context color colors encoding regexp file glob iglob max-count max-columns"
        " max-depth max-filesize replace sort sortr threads type type-not type-add",
        paths_from=1,
        reads_here=True,
        path_options="-f --file",
        pattern_options="-e --regexp -f --file --files --type-list",
    ),
    "stat": _known("tfx", "c", "terse", "format printf"),
    "file": _known("bhikNnpr0", "F", "brief mime mime-type mime-encoding no-dereference raw", "separator"),
    "du": _known(
        "0abchklmsSx",
        "dBt",
        "all apparent-size bytes total human-readable summarize separate-dirs one-file-system si",
        "max-depth block-size threshold exclude",
        reads_here=True,
    ),
    "df": _known(
        "aHhiklmPT", "Bt", "all human-readable si inodes local portability print-type total", "block-size type"
    ),
    "tree": _known(
        "adfiphsugDFqNrtUcvACnSJX",
        "LPI",
        "dirsfirst noreport prune du si gitignore matchdirs ignore-case",
        "filelimit sort charset",
        reads_here=True,
    ),
    "basename": _known("az", "s", "multiple zero", "suffix", paths_from=None),
    "dirname": _known("z", "", "zero", paths_from=None),
    "realpath": _known(
        "emsqzLP",
        "",
        "canonicalize-existing canonicalize-missing logical physical quiet strip zero no-symlinks",
        "relative-to relative-base",
        path_options="--relative-to --relative-base",
    ),
    "readlink": _known(
        "femnqsvz", "", "canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent verbose zero"
    ),
    "md5sum": _SUM,
    "sha1sum": _SUM,
    "sha224sum": _SUM,
    "sha256sum": _SUM,
    "sha384sum": _SUM,
    "sha512sum": _SUM,
    "b2sum": _SUM,
    "cksum": _known("", "a", "", "algorithm"),
    "shasum": _known("bt", "a", "binary text", "algorithm"),
    "base64": _known("di", "w", "decode ignore-garbage", "wrap", most=1),
    "od": _known("bcdfiloxsv", "AjNt", "output-duplicates", "address-radix skip-bytes read-bytes format"),
    "hexdump": _known("bcCdovx", "ns"),
    "seq": _known("w", "fs", "equal-width", "format separator", paths_from=None, counted=True),
    "sleep": _known(paths_from=None, most=1),
    "pwd": _known("LP", "", paths_from=None, most=0),
    "uname": _known(
        "asnrvmpio",
        "",
        "all kernel-name nodename kernel-release kernel-version machine operating-system",
        paths_from=None,
        most=0,
    ),
    "arch": _NOTHING,
    "nproc": _known("", "", "all", "ignore", paths_from=None, most=0),
    "whoami": _NOTHING,
    "hostname": _known("fsid", "", "fqdn short", paths_from=None, most=0),
    "id": _known("gGnruz", "", "group groups name real user zero", paths_from=None),
    "groups": _known("", "", paths_from=None),
    "uptime": _known("ps", "", "pretty since", paths_from=None, most=0),
    "free": _known("bkmghlt", "", "bytes kilo mega giga human total", paths_from=None, most=0),
    "tty": _known("s", "", "silent quiet", paths_from=None, most=0),
    "which": _known("as", "", "all", paths_from=None),
    "type": _known("afptP", "", paths_from=None),
    "locale": _known("a", "", "all-locales", paths_from=None, most=0),
    "getconf": _known("a", "", paths_from=None),
}

Special = Callable[[Sequence[Word]], Reads | None]
_SPECIAL: dict[str, Special] = {
    "git": git.reads,
    "find": special.find,
    "sed": special.sed,
    "jq": special.jq,
    "date": special.date,
    "printf": special.printf,
    "ps": special.ps,
    "echo": special.anything,
    ":": special.anything,
    "true": special.anything,
    "false": special.anything,
    "test": special.test,
    "[": special.test,
    "read": special.read,
    "command": special.lookup,
    "cd": special.nothing,  # where it leads is followed by the one who reads the script
    **dict.fromkeys(("exit", "return", "break", "continue", "shift", "wait"), special.number),
    "set": special.shell_options,
}
# Not here: cargo, rustc, rustup, yarn, pnpm and pytest. They are what the files of a repository choose, or load those.
_VERSIONED = names(
    "python python3 node npm deno bun ruby gem perl php java javac gcc g++ clang cc make cmake"
    " docker kubectl uv pip pip3 ruff mypy pyright tsc eslint bash zsh terraform helm gh"
)
_VERSIONED_SHORTLY = names("python python3 pip pip3 uv ruff mypy")  # zsh -V runs what comes in


def reads_of(words: Sequence[Word]) -> Reads | None:
    """The paths that a command known to be read-only reads, or None when it is not known to be that."""
    name = words[0].text
    if name is None or words[0].is_glob:
        return None
    for directory in ("/bin/", "/usr/bin/"):
        name = name.removeprefix(directory) if "/" not in name.removeprefix(directory) else name
    if special_case := _SPECIAL.get(name):
        return special_case(words[1:])
    if known := TABLE.get(name):
        return _from_table(known, words[1:])
    arguments = [word.text for word in words[1:]]
    if (name in _VERSIONED and arguments == ["--version"]) or (name in _VERSIONED_SHORTLY and arguments == ["-V"]):
        return ()
    if [name, *arguments] in (
        ["node", "-v"],
        ["npm", "-v"],
        ["go", "version"],
        ["java", "-version"],
    ):
        return ()
    return None


def _from_table(known: Known, words: Sequence[Word]) -> Reads | None:
    given = read_options(words, known.options)
    if given is None:
        return None
    globs = tuple(word for word in given.rest if word.is_glob)
    if known.most is not None and (len(given.rest) > known.most or globs):
        return None
    first = known.paths_from
    if first is None:
        return globs
    if known.pattern_options and given.has(*known.pattern_options):
        first = 0
    if any(word.is_glob for word in given.rest[:first]):
        return None
    paths = [*given.values(*known.path_options), *given.rest[first:]]
    if not given.rest[first:] and (known.reads_here or given.has(*known.recursive)):
        paths.append(HERE)
    return tuple(word for word in paths if word.text != "-")
