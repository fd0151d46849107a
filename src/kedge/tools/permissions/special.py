"""Read-only commands whose arguments are a language of their own: find, sed, jq, date, and the shell's builtins."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kedge.tools.permissions.options import Options, dashed, names, read_options
from kedge.tools.permissions.variables import may_be_set
from kedge.tools.permissions.words import Word

HERE = Word(".")
Reads = tuple[Word, ...]  # paths, from where the command is

_FIND_TESTS = names(
    "-name -iname -path -ipath -wholename -regex -iregex -type -xtype -size -mtime -mmin -atime -amin -ctime -cmin"
    " -maxdepth -mindepth -perm -user -group -printf -regextype -links -inum"
)
_FIND_PLAIN = names(
    "-empty -print -print0 -ls -prune -not ! -a -and -o -or ( ) -depth -xdev -mount -quit -readable -writable"
    " -executable"
    " -true -false -nouser -nogroup , -daystart -noleaf -ignore_readdir_race"
)
_BINARY = frozenset({"=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
# Of a delimiter inside brackets one sed says that it ends the expression, and another that it does not.
_SED_EXPRESSION = r"(?:[^{mark}\\\n\[]|\\[^\n]|\[\^?+\]?+[^\]{mark}\\\n]*\])*".replace
_SED_ADDRESS = rf"(?:\d+|\$|/{_SED_EXPRESSION('{mark}', '/')}/I?)"
_SED_SUBSTITUTION = "|".join(
    rf"s{mark}{_SED_EXPRESSION('{mark}', mark)}{mark}(?:[^{mark}\\\n]|\\[^\n])*{mark}[gpiI0-9]*"
    for mark in (re.escape(each) for each in "/|,#:@!%_")
)
# Blanks are never given back: twelve thousand of them took six seconds.
_SED_ADDRESSES = rf"{_SED_ADDRESS}(?:[,~+]{_SED_ADDRESS}|,[+~]\d+)?\s*+(?:!\s*+)?"
_SED_COMMAND = rf"(?:{_SED_ADDRESSES})?(?:[pdqhHgGxnN=]|{_SED_SUBSTITUTION})"
_SED = re.compile(rf"\s*+{_SED_COMMAND}\s*+(?:;\s*+{_SED_COMMAND}\s*+)*+;?\s*+")
_SED_OPTIONS = Options(
    short="nErsuz",
    short_valued="e",
    long=dashed("quiet silent regexp-extended separate unbuffered null-data posix"),
    long_valued=dashed("expression"),
)
_JQ_OPTIONS = Options(
    short="rRncCMsSaje",
    long=dashed(
        "raw-output raw-input null-input compact-output color-output monochrome-output slurp sort-keys"
        " ascii-output join-output exit-status tab seq stream"
    ),
    long_valued=dashed("indent"),
)
# Its own way to the environment, to modules and to files.
_JQ_POWERS = re.compile(r"\benv\b|\bENV\b|\$__prog|\binclude\b|\bimport\b|\binput_filename\b|\bget_search_list\b")
_PRINTF_STORING = re.compile(r"%[^A-Za-z%\\]*[hlLjzt]*n")  # the number of characters so far, in any variable
_DATE_OPTIONS = Options(
    short="uRnj",
    short_valued="dvr",
    short_optional="I",
    long=dashed("utc universal rfc-email"),
    long_valued=dashed("date rfc-3339"),
    long_optional=dashed("iso-8601"),
)


def anything(words: Sequence[Word]) -> Reads | None:
    """It prints its words, or does nothing with them. A wildcard would list what is there."""
    return tuple(word for word in words if word.is_glob)


def nothing(words: Sequence[Word]) -> Reads | None:
    return ()


def number(words: Sequence[Word]) -> Reads | None:
    return () if all(word.text is not None and re.fullmatch(r"\d{1,3}", word.text) for word in words) else None


def shell_options(words: Sequence[Word]) -> Reads | None:
    """`set -euo pipefail` and its like; `set` alone shows every variable."""
    texts = [word.text or "?" for word in words]
    return () if texts and re.fullmatch(r"([-+][eux]*o? ?|pipefail ?|errexit ?|nounset ?)+", " ".join(texts)) else None


def read(words: Sequence[Word]) -> Reads | None:
    """The names must be plain: an index in one is run."""
    given = read_options(words, Options(short="rs", short_valued="dnNtu"))
    if given is None:
        return None
    return () if all(word.text is not None and may_be_set(word.text) for word in given.rest) else None


def lookup(words: Sequence[Word]) -> Reads | None:
    """`command -v name`. Without the option it runs the name: that is a wrapper."""
    texts = [word.text for word in words]
    return (
        ()
        if texts[:1] in (["-v"], ["-V"]) and all(text and re.fullmatch(r"[\w.+/-]+", text) for text in texts)
        else None
    )


def printf(words: Sequence[Word]) -> Reads | None:
    if not words or words[0].text is None or words[0].text.startswith("-") or words[0].is_glob:
        return None  # -v stores, and runs an index
    if _PRINTF_STORING.search(words[0].text):
        return None
    return tuple(word for word in words if word.is_glob)


def test(words: Sequence[Word]) -> Reads | None:
    """Whether files exist may be asked of any path. -v and -R look into variables, and run an index: the operator must
    be known, wherever another word is not."""
    texts = [word.text for word in words]
    if {"-v", "-R"} & set(texts) or any(word.is_glob or not word.is_one for word in words):
        return None
    if None not in texts:
        return ()
    if texts[:1] == ["!"]:
        texts = texts[1:]
    is_certain = (
        len(texts) == 1 or (len(texts) == 2 and texts[0] is not None) or (len(texts) == 3 and texts[1] in _BINARY)
    )
    return () if is_certain else None


def ps(words: Sequence[Word]) -> Reads | None:
    """Processes, without their environment (`ps e`)."""
    texts = [word.text or "?" for word in words]
    return () if all(re.fullmatch(r"a?u?x?w{0,2}|-[eAfFlwp]+|\d+", text) for text in texts) else None


def date(words: Sequence[Word]) -> Reads | None:
    """A word without `+` would set the clock."""
    given = read_options(words, _DATE_OPTIONS)
    if given is None or any(not (word.text or "").startswith("+") for word in given.rest):
        return None
    return tuple(value for value in given.values("-r") if not re.fullmatch(r"\d+", value.text or ""))


def find(words: Sequence[Word]) -> Reads | None:
    """Without -exec, -delete, -fprint and what follows links."""
    roots: list[Word] = []
    index = 0
    while index < len(words) and not _is_expression(words[index]):
        roots.append(words[index])
        index += 1
    while roots and roots[0].text == "-P":
        del roots[0]
    newer: list[Word] = []
    while index < len(words):
        text = words[index].text
        is_followed = index + 1 < len(words) and words[index + 1].text is not None and not words[index + 1].is_glob
        if text in _FIND_TESTS and is_followed:
            index += 2
        elif text in ("-newer", "-anewer", "-cnewer", "-samefile") and is_followed:
            newer.append(words[index + 1])
            index += 2
        elif text in _FIND_PLAIN:
            index += 1
        else:
            return None
    if any(root.text is None for root in roots):
        return None
    return (*(roots or [HERE]), *newer)


def _is_expression(word: Word) -> bool:
    return word.text is None or (word.text.startswith(("-", "!", "(")) and word.text != "-P")


def sed(words: Sequence[Word]) -> Reads | None:
    """Scripts that print and substitute; none that writes (w), runs (e) or edits in place."""
    given = read_options(words, _SED_OPTIONS)
    if given is None:
        return None
    scripts, files = given.values("-e", "--expression"), list(given.rest)
    if not scripts:
        scripts, files = files[:1], files[1:]
    if not scripts or not all(script.text and not script.is_glob and _SED.fullmatch(script.text) for script in scripts):
        return None
    return tuple(file for file in files if file.text != "-")


def jq(words: Sequence[Word]) -> Reads | None:
    given = read_options(words, _JQ_OPTIONS)
    if given is None or not given.rest:
        return None
    program = given.rest[0].text
    if program is None or given.rest[0].is_glob or _JQ_POWERS.search(program):
        return None
    return given.rest[1:]
