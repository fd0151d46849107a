"""Which git commands change nothing: those that look at history and state, with options that only shape what is shown.

Left out on purpose: --output (writes), --ext-diff, --textconv, --open-files-in-pager and -c (run programs), --no-index
and --git-dir (leave the repository), and abbreviations of any option.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.tools.permissions.options import Given, Options, dashed, read_options
from kedge.tools.permissions.special import HERE, Reads
from kedge.tools.permissions.words import Word

_DIFF = (
    "patch no-patch raw patch-with-raw patch-with-stat numstat shortstat summary name-only name-status no-color"
    " word-diff"
    " color-words no-renames minimal patience histogram no-indent-heuristic check full-index binary ignore-all-space"
    " ignore-space-change ignore-space-at-eol ignore-blank-lines ignore-cr-at-eol function-context no-ext-diff"
    " no-textconv"
    " quiet exit-code text cached staged merge-base no-prefix pickaxe-all pickaxe-regex cc combined-all-paths"
)
_DIFF_OPTIONAL = (
    "stat unified color find-renames find-copies dirstat abbrev word-diff color-moved submodule ignore-submodules"
    " relative compact-summary"
)
_DIFF_VALUED = "diff-filter diff-algorithm inter-hunk-context src-prefix dst-prefix word-diff-regex stat-width anchored"
_LOG = (
    " oneline graph all branches tags remotes merges no-merges first-parent reverse date-order author-date-order"
    " topo-order"
    " follow no-decorate abbrev-commit no-abbrev-commit left-right cherry-pick cherry-mark boundary"
    " full-history simplify-merges ancestry-path no-walk left-only right-only cherry parents children relative-date"
    " source walk-reflogs regexp-ignore-case extended-regexp fixed-strings perl-regexp all-match invert-grep no-notes"
    " do-walk dense sparse use-mailmap no-mailmap count no-expand-tabs root"
)
_LOG_VALUED = " max-count skip since after until before author committer grep glob min-parents max-parents date format"
_LOG_OPTIONAL = " pretty format decorate branches tags remotes no-walk expand-tabs"


class _Sub(msgspec.Struct, frozen=True):
    options: Options
    most: int | None = None  # words after the options
    first: frozenset[str] = frozenset()  # the first of them must be one of these
    needs: tuple[str, ...] = ()  # words are allowed only with one of these options


def _sub(
    short: str = "",
    valued: str = "",
    long: str = "",
    long_valued: str = "",
    optional: str = "",
    *,
    attached: str = "",
    counted: bool = False,
    most: int | None = None,
    first: str = "",
    needs: str = "",
) -> _Sub:
    options = Options(
        short=short,
        short_valued=valued,
        short_optional=attached,
        long=dashed(long),
        long_valued=dashed(long_valued),
        long_optional=dashed(optional),
        is_counted=counted,
        needs_equals=True,
    )
    return _Sub(options, most, frozenset(first.split()), tuple(needs.split()))


_LOGGING = _sub(
    "pusczwbiEFPgmqtaR",
    "nSGLl",
    _DIFF + _LOG,
    _DIFF_VALUED + _LOG_VALUED,
    _DIFF_OPTIONAL + _LOG_OPTIONAL,
    attached="UMC",
    counted=True,
)
_DIFFING = _sub("puszwbaqRrtm", "SGl", _DIFF + " root", _DIFF_VALUED, _DIFF_OPTIONAL, attached="UMC")
_REFS = "contains no-contains merged no-merged points-at sort format count"

SUBCOMMANDS: dict[str, _Sub] = {
    "status": _sub(
        "sbvz",
        "",
        "short branch long verbose show-stash ahead-behind no-ahead-behind null no-renames renames",
        optional="porcelain untracked-files ignored ignore-submodules column find-renames",
        attached="u",
    ),
    "log": _LOGGING,
    "show": _LOGGING,
    "whatchanged": _LOGGING,
    "reflog": _sub(
        "pusczwbiE",
        "nSG",
        _DIFF + _LOG,
        _DIFF_VALUED + _LOG_VALUED,
        _DIFF_OPTIONAL + _LOG_OPTIONAL,
        counted=True,
        first="show HEAD",
    ),
    "rev-list": _sub(
        "", "n", _LOG + " objects no-object-names timestamp", _LOG_VALUED, _LOG_OPTIONAL + " disk-usage", counted=True
    ),
    "diff": _DIFFING,
    "diff-tree": _DIFFING,
    "diff-index": _DIFFING,
    "diff-files": _DIFFING,
    "shortlog": _sub(
        "nsec", "", "numbered summary email committer all no-merges", "since until author group", counted=True
    ),
    "blame": _sub(
        "lstfnewcp",
        "L",
        "show-name show-number show-email porcelain line-porcelain incremental root",
        "since date",
        "abbrev",
        attached="MC",
    ),
    "describe": _sub(
        "",
        "",
        "all tags contains always long first-parent exact-match",
        "candidates match exclude",
        "dirty broken abbrev",
    ),
    "rev-parse": _sub(
        "q",
        "",
        "verify quiet show-toplevel show-prefix show-cdup git-dir absolute-git-dir git-common-dir is-inside-work-tree"
        " is-inside-git-dir is-bare-repository symbolic-full-name is-shallow-repository symbolic all branches"
        " tags remotes",
        "",
        "short abbrev-ref default",
    ),
    "ls-files": _sub(
        "cdmoiskutvz",
        "x",
        "cached deleted modified others ignored stage killed unmerged exclude-standard full-name"
        " error-unmatch directory no-empty-directory eol deduplicate",
        "exclude with-tree",
        "abbrev",
    ),
    "ls-tree": _sub("drtlz", "", "long name-only name-status object-only full-name full-tree", "format", "abbrev"),
    "cat-file": _sub("tsep", "", most=2),
    "grep": _sub(
        "aiIwvhHEGFPnlLzcopWq",
        "ABCefm",
        "cached untracked text ignore-case word-regexp invert-match line-number count files-with-matches"
        " name-only files-without-match only-matching extended-regexp basic-regexp fixed-strings perl-regexp heading"
        " break"
        " show-function function-context all-match quiet full-name and or not column recursive",
        "after-context before-context context max-depth max-count threads",
        "color",
    ),
    "branch": _sub(
        "avrqil",
        "",
        "all list verbose remotes show-current no-color ignore-case",
        _REFS,
        "color column abbrev contains merged no-merged no-contains",
        needs="-l --list --contains --merged --no-merged --no-contains",
    ),
    "tag": _sub(
        "li",
        "",
        "list ignore-case no-color",
        _REFS,
        "color column contains merged no-merged",
        attached="n",
        needs="-l --list --contains --merged --no-merged -n",
    ),
    "remote": _sub("v", "", "verbose", first="get-url", most=2),
    "stash": _sub("pu", "", _DIFF, "", "stat", first="list show"),
    "worktree": _sub("vz", "", "porcelain verbose", first="list", most=1),
    "merge-base": _sub("a", "", "all octopus is-ancestor independent fork-point"),
    "name-rev": _sub("", "", "name-only tags always", "refs exclude"),
    "for-each-ref": _sub("", "", "ignore-case", _REFS, "contains merged no-merged"),
    "show-ref": _sub("dqs", "", "heads tags branches dereference hash verify quiet head", "", "abbrev hash"),
    "check-ignore": _sub("qvnz", "", "quiet verbose non-matching no-index"),
    "check-attr": _sub("az", "", "all cached"),
    "count-objects": _sub("vH", "", "verbose human-readable", most=0),
    "config": _sub("", "", "local global bool int", "get get-all default type", most=0),
    "version": _sub("", "", "build-options", most=0),
}


def reads(words: Sequence[Word]) -> Reads | None:
    """The paths that it reads: where it is, where -C leads, and whatever of its words looks like a path elsewhere."""
    words = list(words)
    where = HERE
    while words and (words[0].text or "").startswith("-"):
        text = words.pop(0).text
        if text == "-C" and words and words[0].text is not None and not words[0].is_glob and where is HERE:
            where = words.pop(0)
        elif text == "--version" and not words:
            return ()
        elif text not in ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"):
            return None
    if not words or words[0].text is None or words[0].is_glob:
        return None
    sub = SUBCOMMANDS.get(words[0].text)
    given = None if sub is None else read_options(words[1:], sub.options)
    if sub is None or given is None or not _is_listing(sub, given):
        return None
    if any(word.text is None or word.is_glob for word in given.rest):
        return None
    if (sub.needs or sub.first) and any(word.text == "--" for word in words):
        return None  # the value of --contains, and what follows are options; `git stash -- list` stashes a file
    # Where there is no repository, `git diff a b` compares files, and follows links on the way to them.
    elsewhere = [word for word in given.rest if words[0].text == "diff" or _may_leave(word.text or "")]
    if any(_may_leave(word.text or "") for word in elsewhere) and where is not HERE:
        return None
    if where is not HERE:
        elsewhere = [Word(f"{where.text}/{word.text}") for word in elsewhere]
    files = given.values("-f") if words[0].text == "grep" else []
    return (where, *elsewhere, *files)


def without_globals(words: Sequence[Word]) -> list[Word]:
    """`git -C dir -c a=b push` is `git push` to whoever forbids it."""
    rest = list(words[1:])
    while rest and rest[0].text is not None and rest[0].text.startswith("-"):
        text = rest.pop(0).text
        if text in ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env") and rest:
            rest.pop(0)
    return [words[0], *rest]


def _is_listing(sub: _Sub, given: Given) -> bool:
    if sub.most is not None and len(given.rest) > sub.most:
        return False
    if sub.first and (given.rest or sub.most is None):
        return given.rest[0].text in sub.first if given.rest else "HEAD" in sub.first
    return not (sub.needs and given.rest) or given.has(*sub.needs)


def _may_leave(text: str) -> bool:
    """A path that is not below the directory: git would compare it as a plain file."""
    return text.startswith(("/", "~")) or ".." in text.split("/")
