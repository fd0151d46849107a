"""The place of an edit in a text: exactly one, or an error that shows the model the nearest lines.

Line numbers copied from `view` are removed. Whole lines may differ in white space, if it is certain how the new text is
to be indented.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kedge.files.diffs import BoundedMatcher, TooMuchWork
from kedge.tools.errors import ToolError

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

_NUMBERED = re.compile(r"^(?=[ \d]{6})( *\d{1,9})\t", re.MULTILINE)  # as `view` shows a line: in six columns or more
_NUMBERS_NOTE = "The line numbers of view were removed."

Span = tuple[int, int, str]  # start, end, new text


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
            text, stripped, _strip_like_old(old, new), replace_all=replace_all, shown=shown, is_exact=is_exact
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


def _strip_like_old(old: str, new: str) -> str:
    """Return `new` without line numbers, for an `old` that had them. Other numbers than those of `old` are text."""
    lines = [line for line in new.split("\n") if line.strip()]
    found = [match for line in lines if (match := _NUMBERED.match(line))]
    first = _NUMBERED.match(old)
    if not found or (len(found) == len(lines) and first is not None and int(found[0][1]) == int(first[1])):
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
    is_shifted = any(there != here for _, (there, here) in found)
    if is_shifted:
        _check_indentation(lines, new, found, shown)
    spans: list[Span] = []
    for i, (there, here) in found:
        if spans and starts[i] < spans[-1][1]:
            continue  # overlaps the match before
        end = starts[i + len(wanted) - 1] + len(lines[i + len(wanted) - 1])
        spans.append((starts[i], end, _reindent(_trim_like(old, new), here, there)))
    if is_shifted:
        return Match(spans, "old_string had another indentation than the file; new_string was indented like the file.")
    return Match(spans, "old_string matched only when white space at the ends of lines was ignored.")


def _check_indentation(lines: list[str], new: str, found: Sequence[tuple[int, tuple[str, str]]], shown: str) -> None:
    """Raise `ToolError` unless it is certain how `new` is to be indented at the places that were found."""
    here = found[0][1][1]  # in `old`, so it is the same for all places
    new_lines = new.split("\n")
    margins = [_margin(line) for line in new_lines if line.strip()]
    if margins and (min(map(len, margins)) != len(here) or not all(margin.startswith(here) for margin in margins)):
        problem = "old_string has another indentation than the file, and new_string has another than old_string."
        raise _indentation_error(shown, problem)
    # Deeper lines must be indented as the file does it: not by spaces below a tab, nor by two spaces instead of four.
    deeper = {char for margin in margins for char in margin[len(here) :]}
    is_mixed = any(there and deeper - set(there) for _, (there, _) in found)
    if is_mixed or _find_indents(new_lines) - _find_indents(lines):
        raise _indentation_error(shown, "old_string and new_string are indented in another way than the file.")


def _find_indents(lines: Sequence[str]) -> set[str]:
    """Return by what a line is indented more than the one before it."""
    margins = [_margin(line) for line in lines if line.strip()]
    pairs = pairwise(margins)
    return {after[len(before) :] for before, after in pairs if len(after) > len(before) and after.startswith(before)}


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
