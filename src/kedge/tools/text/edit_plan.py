"""Edits of a file: planned, shown as a diff, and written atomically.

An edit of a file that changed since the model saw it is refused: it would overwrite somebody's work. In a file that
the model has not seen, text that is there exactly once may be replaced: the match shows that the model knows it.
An edit has exactly one place in the text, or fails with an error that shows the model the nearest lines.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from kedge.files.diffs import BoundedMatcher, Diff, TooMuchWork, diff
from kedge.files.states import compute_digest
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, ToolContext, ToolScope, display_path, resolve_path
from kedge.tools.text.text_file import TextFile, read_text_file, replace_file

P = ParamSpec("P")
T = TypeVar("T")

# Each edit searches the whole file; all of them together take a second or two.
MAX_SEARCHED_CHARS = 50 * 1024 * 1024

MAX_ECHO_LINES = 40  # of a diff that is shown to the model; of a longer one it sees the line numbers
MAX_ECHO_HUNKS = 20
SHOWN_LINES = 20  # around the nearest place
SHOWN_MATCHES = 10
MAX_SHOWN_CHARS = 2_000  # of one line
# In a longer file only the exact text is searched.
MAX_LINES = 200_000
# When no line is the same, lines are compared by their beginnings; all comparisons take at most a second.
MAX_COMPARED = 20_000
MAX_COMPARED_CHARS = 500
MAX_COMPARED_CHARS_IN_ALL = 2_000_000
MAX_STEPS = 3_000_000
# More occurrences should be changed by a program; each costs memory.
MAX_PLACES = 100_000
# Of lines that differ only in white space, at all their places: half a second.
MAX_CHECKED_CHARS = 5_000_000

_NUMBERED = re.compile(r"^ {0,5}(\d{1,9})\t", re.MULTILINE)  # as `view` shows a line
_NUMBERS_NOTE = "The line numbers of view were removed."

Span = tuple[int, int, str]  # start, end, new text


class Change(NamedTuple):
    old: str
    new: str
    replace_all: bool = False


class EditPlan(NamedTuple):
    """New content of a file; `before` is None if the file does not exist yet."""

    path: Path
    shown: str
    before: TextFile | None
    data: bytes
    diff: Diff
    notes: list[str]
    is_viewed: bool = True  # False: the model knows only the text that it replaced

    @property
    def title(self) -> str:
        return f"{'create' if self.before is None else 'edit'} {self.shown} ({self.diff.counts})"


async def list_edit_access(scope: ToolScope, given: str, changes: Sequence[Change]) -> list[Access]:
    return [make_access(await asyncio.to_thread(plan_edit, scope, given, changes))]


async def run_edit(ctx: ToolContext, given: str, changes: Sequence[Change]) -> Output:
    planned = await asyncio.to_thread(plan_edit, ctx, given, changes)
    return await apply_plan(ctx, planned)


def plan_edit(scope: ToolScope, given: str, changes: Sequence[Change]) -> EditPlan:
    """Apply the changes in memory. Blocks. Raises ToolError."""
    path = resolve_path(scope, given)
    shown = display_path(scope, path)
    before = read_text_file(path, shown)
    is_viewed = _is_viewed(scope, path)
    if is_viewed or not _may_edit_unviewed(scope, path, changes):
        check_file_known(scope, before, shown)
    else:
        _check_unchanged(scope, before, shown)
    if len(changes) * len(before.text) > MAX_SEARCHED_CHARS:
        raise ToolError(
            f"{len(changes)} edits are too many for a file as large as {shown}.",
            "Make a few at a time, or use a script.",
        )
    file, notes = before, list[str]()
    for i, change in enumerate(changes, 1):
        try:
            old, new = change.old.replace("\r\n", "\n"), change.new.replace("\r\n", "\n")
            match = find_match(file.text, old, new, replace_all=change.replace_all, shown=shown, is_exact=not is_viewed)
        except ToolError as error:
            if len(changes) == 1:
                raise
            raise ToolError(
                f"Edit {i} of {len(changes)}: {error.problem}",
                f"{error.advice}\n\nNothing was written.",
                summary=f"{error.summary} Nothing was written.",
            ) from error
        notes += [match.note] if match.note else []
        file = msgspec.structs.replace(file, raw=file.replace_spans(match.spans))
    data, changed = before.encode_text(file.raw), diff(before.text, file.text, shown)
    return EditPlan(path, shown, before, data, changed, notes, is_viewed)


def check_file_known(scope: ToolScope, file: TextFile, shown: str) -> None:
    if not _is_viewed(scope, file.path):
        raise ToolError(
            f"{shown} has not been read in this conversation.",
            "View it first, then repeat the edit.",
            summary=f"Not changed: the agent has not read {shown} yet.",
        )
    _check_unchanged(scope, file, shown)


def _is_viewed(scope: ToolScope, path: Path) -> bool:
    return str(path) in scope.known_files and str(path) not in scope.unviewed_files


def _may_edit_unviewed(scope: ToolScope, path: Path, changes: Sequence[Change]) -> bool:
    """Not outside the workspace or behind a rule: the error of an edit shows lines of the file before any permission
    is asked."""
    is_readable = path.is_relative_to(scope.directory) and not (scope.is_hidden and scope.is_hidden(str(path)))
    return is_readable and not any(change.replace_all for change in changes)


def _check_unchanged(scope: ToolScope, file: TextFile, shown: str) -> None:
    if scope.known_files.get(str(file.path), file.digest) != file.digest:
        raise ToolError(
            f"{shown} has changed since you last saw it.",
            "View it again, then repeat the edit.",
            summary=f"Not changed: {shown} is no longer as the agent last read it.",
        )


def make_access(planned: EditPlan) -> Access:
    params = {"path": planned.shown, "diff": planned.diff.text}
    return Access(kind="write", subject=str(planned.path), description=planned.title, params=params)


async def run_uninterrupted(write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread and wait for its end even if canceled: the change must be recorded."""
    task = asyncio.ensure_future(asyncio.to_thread(write, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def apply_plan(ctx: ToolContext, planned: EditPlan) -> Output:
    status = None if planned.before is None else planned.before.status
    counts = (planned.diff.added, planned.diff.removed)
    async with ctx.record_change(planned.path, planned.data, counts):
        await run_uninterrupted(replace_file, planned.path, planned.data, status, planned.shown)
    metadata: dict[str, object] = {
        "files": {str(planned.path): compute_digest(planned.data)},
        "path": planned.shown,
        "diff": planned.diff.text,
        "added": planned.diff.added,
        "removed": planned.diff.removed,
    }
    if not planned.is_viewed:
        metadata["unviewed"] = [str(planned.path)]
    return Output(content=_describe_change(planned), metadata=metadata)


def _describe_change(planned: EditPlan) -> str:
    """Return what the model needs to go on; people see the diff of the metadata."""
    if planned.before is None:
        lines = planned.diff.added
        return f"Created {planned.shown}, {lines:,} line{'' if lines == 1 else 's'}."
    done = f"Edited {planned.shown} ({planned.diff.counts})."
    text = planned.diff.text.rstrip("\n")
    if text.count("\n") < MAX_ECHO_LINES + 2:  # with the two lines of file names
        return "\n".join([done, *planned.notes, "", text])
    return "\n".join([f"{done} {_describe_hunks(planned.diff.hunks)}", *planned.notes])


def _describe_hunks(hunks: Sequence[tuple[int, int]]) -> str:
    ranges = [f"{first:,}-{last:,}" if last > first else f"{first:,}" for first, last in hunks[:MAX_ECHO_HUNKS]]
    more = f" and {len(hunks) - MAX_ECHO_HUNKS:,} more places" if len(hunks) > MAX_ECHO_HUNKS else ""
    is_one = len(hunks) == 1 and hunks[0][0] >= hunks[0][1]
    return f"The changed line{' is' if is_one else 's are'} now {', '.join(ranges)}{more}."


class Match(NamedTuple):
    spans: list[Span]
    note: str = ""  # says which difference was ignored


def find_match(text: str, old: str, new: str, *, replace_all: bool, shown: str, is_exact: bool = False) -> Match:
    """Find `old` in `text`: all occurrences, or the only one. Raises `ToolError`.

    Differences in white space are ignored, unless the match must be exact. Line numbers that were copied from `view`
    are removed, unless they are in the file.
    """
    if not old:
        raise ToolError(
            "old_string is empty.",
            "Give the text to replace, or use write for a whole new file.",
            summary="The text to replace is empty.",
        )
    if old == new:
        raise ToolError(
            "old_string and new_string are the same: nothing would change.", summary="The edit changes nothing."
        )
    places = _find_all(text, old, shown)
    if not places and (stripped := _strip_line_numbers(old)) is not None:
        match = find_match(
            text, stripped, _strip_like_old(new), replace_all=replace_all, shown=shown, is_exact=is_exact
        )
        return Match(match.spans, f"{_NUMBERS_NOTE} {match.note}".rstrip())
    if len(places) > 1 and not replace_all:
        raise _several_error(text, places, shown)
    begins_in_margin = _begins_in_margin(text, places, old, new)
    if places and not begins_in_margin:
        return Match([(start, start + len(old), new) for start in places])
    if text.count("\n") > MAX_LINES:
        raise _missing_error(shown, "View the lines that you want to change again.")
    if not is_exact and (match := _find_by_lines(text, old, new, replace_all=replace_all, shown=shown)):
        return match
    if begins_in_margin:
        raise _indentation_error(shown, "old_string has less indentation than the file.")
    raise _missing_error(shown, _describe_nearest(text, old))


def _strip_line_numbers(old: str) -> str | None:
    """Return the text without the line numbers of `view`; None unless every line has one, in sequence."""
    *lines, last = old.split("\n")
    lines += [last] if last else []
    found = [_NUMBERED.match(line) for line in lines]
    first = found[0]
    if first is None or not any(line[match.end() :].strip() for line, match in zip(lines, found, strict=True) if match):
        return None
    if any(match is None or int(match[1]) != int(first[1]) + i for i, match in enumerate(found)):
        return None
    return _NUMBERED.sub("", old)


def _strip_like_old(new: str) -> str:
    """Return `new` without line numbers, for an `old` that had them."""
    lines = [line for line in new.split("\n") if line.strip()]
    numbered = sum(_NUMBERED.match(line) is not None for line in lines)
    if numbered in (0, len(lines)):
        return _NUMBERED.sub("", new)
    raise ToolError(
        "Some lines of new_string begin with the line numbers of view, and others do not.",
        "Repeat the edit without line numbers.",
        summary="The new text contains line numbers.",
    )


def _begins_in_margin(text: str, places: Sequence[int], old: str, new: str) -> bool:
    """Return whether `old` begins inside a line's indentation, which the other lines of `new` would not get."""
    if not old.startswith((" ", "\t")) or "\n" not in new.strip("\n"):
        return False
    margins = (text[text.rfind("\n", 0, start) + 1 : start] for start in places)
    return any(margin and not margin.strip() for margin in margins)


def _find_all(text: str, old: str, shown: str) -> list[int]:
    places: list[int] = []
    at = text.find(old)
    while at >= 0:
        if len(places) == MAX_PLACES:
            raise ToolError(_describe_too_many(shown))
        places.append(at)
        at = text.find(old, at + len(old))
    return places


def _describe_too_many(shown: str) -> str:
    return f"old_string occurs too often in {shown}. Use bash with sed or a script."


# whole lines that differ in white space


def _find_by_lines(text: str, old: str, new: str, *, replace_all: bool, shown: str) -> Match | None:
    """Find whole lines that differ only in white space at their ends, or all by the same indentation."""
    wanted = old.strip("\n").split("\n")
    if not any(line.strip() for line in wanted):
        return None
    lines = text.split("\n")
    starts = _line_starts(lines)
    found: list[tuple[int, tuple[str, str]]] = []
    checked_chars = 0
    for i in _find_same_lines(lines, wanted):
        end = i + len(wanted) - 1
        checked_chars += starts[end] + len(lines[end]) - starts[i] + len(old)
        if checked_chars > MAX_CHECKED_CHARS:
            raise ToolError(_describe_too_many(shown))
        if (shift := _find_shift(lines, i, wanted)) is not None:
            found.append((i, shift))
    if not found:
        return None
    if len(found) > 1 and not replace_all:
        raise _several_error(text, [starts[i] for i, _ in found], shown)
    spans: list[Span] = []
    for i, (there, here) in found:
        if spans and starts[i] < spans[-1][1]:
            continue  # overlaps the match before
        if there != here:
            _check_indentation(lines, new, here, there, shown)
        end = starts[i + len(wanted) - 1] + len(lines[i + len(wanted) - 1])
        spans.append((starts[i], end, _reindent(_trim_like(old, new), here, there)))
    if any(there != here for _, (there, here) in found):
        return Match(spans, "old_string had another indentation than the file; new_string was indented like the file.")
    return Match(spans, "old_string matched only when white space at the ends of lines was ignored.")


def _check_indentation(lines: list[str], new: str, here: str, there: str, shown: str) -> None:
    """Raise `ToolError` unless moving `new` from the indentation `here` to `there` is certainly what is meant."""
    margins = [_margin(line) for line in new.split("\n") if line.strip()]
    if margins and (min(map(len, margins)) != len(here) or not all(margin.startswith(here) for margin in margins)):
        problem = "old_string has another indentation than the file, and new_string has another than old_string."
        raise _indentation_error(shown, problem)
    used = {char for line in lines if line.strip() for char in _margin(line)}
    deeper = {char for margin in margins for char in margin[len(here) :]}
    if deeper - (set(there) or used or deeper):  # such as spaces below a line that is indented with tabs
        raise _indentation_error(shown, "old_string and new_string are indented with other characters than the file.")


def _trim_like(old: str, new: str) -> str:
    """Remove the line feeds around `new` that `old` has, too, because only whole lines are replaced."""
    leading = min(_line_ends(old), _line_ends(new))
    trailing = min(_line_ends(old[::-1]), _line_ends(new[::-1]))
    return new[leading : max(leading, len(new) - trailing)]


def _line_ends(text: str) -> int:
    return len(text) - len(text.lstrip("\n"))


def _find_same_lines(lines: list[str], wanted: list[str]) -> Iterator[int]:
    """Yield the line numbers at which the wanted lines are, ignoring white space around them, in linear time."""
    text = "\n".join(["", *(line.strip() for line in lines), ""])
    part = "\n".join(["", *(line.strip() for line in wanted), ""])
    line = counted = 0
    at = text.find(part)
    while at >= 0:
        line += text.count("\n", counted, at)
        counted = at
        yield line
        at = text.find(part, at + 1)


def _find_shift(lines: list[str], at: int, wanted: list[str]) -> tuple[str, str] | None:
    """Return the indentations (in the file, in `wanted`) by which all lines differ; None if there is no such pair."""
    pairs = [(lines[at + k], line) for k, line in enumerate(wanted) if line.strip()]
    margins = [(_margin(there), _margin(here)) for there, here in pairs]
    shortest_there, shortest_here = min(margins, key=lambda pair: len(pair[1]))
    for there, here in margins:
        if not here.startswith(shortest_here) or there != shortest_there + here[len(shortest_here) :]:
            return None
    return shortest_there, shortest_here


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _reindent(new: str, here: str, there: str) -> str:
    return "\n".join(
        there + line[len(here) :] if line.strip() and line.startswith(here) else line for line in new.split("\n")
    )


def _line_starts(lines: list[str]) -> list[int]:
    starts = [0]
    for line in lines[:-1]:
        starts.append(starts[-1] + len(line) + 1)
    return starts


# error texts


def _several_error(text: str, places: list[int], shown: str) -> ToolError:
    numbers = [text.count("\n", 0, scope) + 1 for scope in places[:SHOWN_MATCHES]]
    at = ", ".join(str(number) for number in numbers)
    more = ", …" if len(places) > SHOWN_MATCHES else ""
    return ToolError(
        f"old_string is in {shown} {len(places)} times (lines {at}{more}).",
        "Add lines around it until it is unique, or set replace_all.",
        summary=f"The text to replace is in {shown} {len(places)} times.",
    )


def _indentation_error(shown: str, problem: str) -> ToolError:
    return ToolError(
        f"{problem} Nothing was changed.",
        "Copy the lines exactly, with their indentation, and indent new_string as the file is indented.",
        summary=f"The indentation of the edit does not fit {shown}.",
    )


def _missing_error(shown: str, advice: str) -> ToolError:
    return ToolError(f"old_string is not in {shown}.", advice, summary=f"The text to replace is not in {shown}.")


def _describe_nearest(text: str, old: str) -> str:
    lines, wanted = text.split("\n"), old.strip("\n").split("\n")
    nearest = _find_nearest(lines, wanted)
    if nearest is None:
        return "Nothing in it is similar; view the file again."
    until = min(len(lines), nearest + min(len(wanted), SHOWN_LINES))
    window = "\n".join(f"{i + 1:>6}\t{_cut(lines[i])}" for i in range(nearest, until))
    return f"The nearest lines are:\n\n{window}\n\nCopy them exactly, without the line numbers."


def _find_nearest(lines: list[str], wanted: list[str]) -> int | None:
    """Return where most of the wanted lines are in order; else where a line is most similar to the longest of them."""
    stripped = [line.strip() for line in lines]
    rare = Counter(stripped)
    votes: Counter[int] = Counter()
    places: dict[str, list[int]] = {}
    for i, line in enumerate(stripped):
        if line and rare[line] <= SHOWN_LINES:
            places.setdefault(line, []).append(i)
    for k, line in enumerate(wanted):
        for i in places.get(line.strip(), ()):
            votes[max(0, i - k)] += 1
    if votes:
        return max(votes, key=lambda start: (votes[start], -start))
    line, k = max(((line.strip(), k) for k, line in enumerate(wanted)), key=lambda pair: len(pair[0]))
    scope = _find_most_similar(line, stripped[:MAX_COMPARED]) if line else None
    return None if scope is None else max(0, scope - k)


def _find_most_similar(line: str, lines: list[str]) -> int | None:
    """Return the index of the most similar line, among as many as can be compared in bounded time."""
    best, best_ratio, compared_chars = None, 0.6, 0
    matcher = BoundedMatcher(None, "", line[:MAX_COMPARED_CHARS], autojunk=False)
    matcher.max_steps = MAX_STEPS
    try:
        for i, candidate in enumerate(lines):
            if not len(line) / 4 <= len(candidate) <= len(line) * 4:
                continue  # the length differs too much
            if (compared_chars := compared_chars + min(len(candidate), MAX_COMPARED_CHARS)) > MAX_COMPARED_CHARS_IN_ALL:
                break
            matcher.set_seq1(candidate[:MAX_COMPARED_CHARS])
            if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
                ratio = matcher.ratio()
                if ratio > best_ratio:
                    best, best_ratio = i, ratio
    except TooMuchWork:
        pass  # return the best so far
    return best


def _cut(line: str) -> str:
    return line if len(line) <= MAX_SHOWN_CHARS else f"{line[:MAX_SHOWN_CHARS]}… ({len(line):,} characters)"
