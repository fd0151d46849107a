"""Draws a tool call: a header with its subject and state, and below it the output, diff, task list or sub-agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import msgspec
from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import program_output, visible, visible_line
from kedge.protocol.tool_input import correct_params, parse_tool_input
from kedge.tui.chat.diffs import MIN_SPLIT, draw_counts, draw_diff
from kedge.tui.chat.lines import Line, chop, indent, truncate, wrap
from kedge.tui.chat.palette import Palette
from kedge.tui.formats import TASK_MARKS
from kedge.tui.state.blocks import Block, CallBlock, EndBlock, PromptBlock, TextBlock

FOLDED_OUTPUT = 10  # lines of a command's output
FOLDED_DIFF = 20
FOLDED_ERROR = 6
FOLDED_ERRORS = 4  # of language servers
FOLDED_OTHER = 3
MAX_SUBJECT_CHARS = 500  # in a header, which is one line
MAX_LINES = 1_000  # of an unfolded output
MAX_LINE_CHARS = 4_000  # of one line of output
FOLDED_CHILDREN = 4  # last calls of a sub-agent

_BOLD = Style(bold=True)
_SPACE: Line = [Segment("  ")]
_QUIET = {
    "view",
    "glob",
    "grep",
    "ls",
    "fetch",
    "web_search",
    "download",
    "job_kill",
    "lsp_definition",
    "lsp_references",
    "lsp_hover",
    "lsp_symbols",
}  # their results matter to the model only
_MARKS = {
    "writing": ("○", "muted"),
    "asking": ("●", "warning"),
    "waiting": ("○", "muted"),
    "running": ("●", "primary"),
    "done": ("✓", "success"),
    "failed": ("✗", "error"),
    "interrupted": ("✗", "muted"),
}


class ViewOptions(NamedTuple):
    """How the user wants to see a block."""

    is_unfolded: bool = False
    is_split: bool | None = None  # diffs side by side; None: if the width allows it


DrawChild = Callable[[Block, int, Palette], list[Line]]


def get_diff(call: CallBlock) -> str:
    diff = (call.result.metadata or {}).get("diff") if call.result else None
    return diff if isinstance(diff, str) else ""


def has_body(call: CallBlock, view: ViewOptions) -> bool:
    """Whether anything is drawn below the header of a call."""
    if get_diff(call) or call.child or (call.name == "todos" and call.input):
        return True
    is_shown = view.is_unfolded or call.state == "failed" or call.name not in _QUIET
    return is_shown and bool(call.output.strip())


def draw_call(call: CallBlock, view: ViewOptions, width: int, palette: Palette, draw_child: DrawChild) -> list[Line]:
    given = correct_params(call.name, parse_partial(call.input))
    head = _draw_header(call, given, view, width, palette)
    body = _draw_body(call, given, view, max(1, width - 2), palette, draw_child)
    return [*head, *indent(body, [Segment("  ")])]


def _draw_header(call: CallBlock, given: Json, view: ViewOptions, width: int, palette: Palette) -> list[Line]:
    mark, ink = ("✗", "warning") if _has_failed(call) else _MARKS[call.state]
    style: Style = getattr(palette, ink)
    start: Line = [Segment(f"{mark} ", style), Segment(visible_line(call.name) or "…", palette.text + _BOLD)]
    subject = describe_call(call.name, given)
    suffix = _draw_suffix(call, view, palette)
    if view.is_unfolded:
        return indent(wrap([*start[1:], Segment(f" {subject}", palette.text), *suffix], width - 2), start[:1], _SPACE)
    room = width - sum(len(segment.text) for segment in [*start, *suffix])
    shown = truncate([Segment(f" {subject}", palette.text)], max(0, room)) if subject else []
    return [truncate([*start, *shown, *suffix], width)]


def _has_failed(call: CallBlock) -> bool:
    """Whether a call that was made had no success: a command that failed or took too long."""
    metadata = call.result.metadata or {} if call.result else {}
    return call.state == "done" and bool(metadata.get("exit_code") or metadata.get("timed_out"))


def _draw_suffix(call: CallBlock, view: ViewOptions, palette: Palette) -> Line:
    """Return the facts at the end of the header: counts, exit code, state, number of lines."""
    metadata = call.result.metadata or {} if call.result else {}
    line: Line = []
    if get_diff(call):
        added, removed = metadata.get("added"), metadata.get("removed")
        if isinstance(added, int) and isinstance(removed, int):
            line += [Segment("  "), *draw_counts(added, removed, palette)]
    if isinstance(errors := metadata.get("errors"), int) and errors:
        line.append(Segment(f"  {errors} new error{'' if errors == 1 else 's'}", palette.error))
    code = metadata.get("exit_code")
    if isinstance(code, int) and code:
        line.append(Segment(f"  exit {code}", palette.error))
    if metadata.get("sandboxed") and code:
        line.append(Segment("  in the sandbox", palette.muted))
    if metadata.get("timed_out"):
        line.append(Segment("  timed out", palette.error))
    if isinstance(job := metadata.get("job_id"), str) and call.name == "bash":
        line.append(Segment(f"  job {visible_line(job)}", palette.muted))
    if call.state == "asking":
        line.append(Segment(f"  needs {'an answer' if call.name == 'question' else 'approval'}", palette.warning))
    elif call.state == "interrupted":
        line.append(Segment("  interrupted", palette.muted))
    elif call.state == "writing" and len(call.input) > 1000:
        line.append(Segment(f"  {len(call.input) / 1000:.1f} kB", palette.muted))
    elif call.state == "done" and call.name in _QUIET and not view.is_unfolded:
        total = count_lines(call.output)
        line.append(Segment(f"  {total:,} line{'s' if total != 1 else ''}", palette.muted))
    if call.images:
        line.append(Segment(f"  ▣ {call.images} image{'s' if call.images > 1 else ''}", palette.muted))
    if call.child and not view.is_unfolded and call.state != "running":
        calls = sum(isinstance(block, CallBlock) for block in call.child)
        line.append(Segment(f"  {calls} call{'s' if calls != 1 else ''}", palette.muted))
    return line


def _draw_body(
    call: CallBlock, given: Json, view: ViewOptions, width: int, palette: Palette, draw_child: DrawChild
) -> list[Line]:
    is_open = view.is_unfolded
    lines: list[Line] = []
    output_limit = MAX_LINES if is_open else FOLDED_OUTPUT
    if is_open and call.name == "bash" and "\n" in (command := read_text(given, "command").strip()):
        lines += draw_first_lines(command, MAX_LINES, width, palette.secondary, palette)
    if call.state == "failed":
        # The reason stands at the end of a command's output, and at the beginning of another tool's.
        if call.name == "bash":
            lines += draw_last_lines(call.output, output_limit, width, palette.text, palette)
        else:
            limit = MAX_LINES if is_open else FOLDED_ERROR
            lines += draw_first_lines(call.output, limit, width, palette.error, palette, wrap)
    elif diff := get_diff(call):
        lines += _draw_diff(diff, view, width, palette)
        lines += _draw_new_errors(call, view, width, palette)
    elif call.name == "todos":
        lines += _draw_todos(call, given, width, palette)
    elif call.name == "agent":
        lines += _draw_agent(call, given, view, width, palette, draw_child)
    elif call.name in ("bash", "job_output"):
        lines += draw_last_lines(call.output, output_limit, width, palette.muted, palette)
    elif is_open or call.name not in _QUIET:
        lines += draw_first_lines(call.output, MAX_LINES if is_open else FOLDED_OTHER, width, palette.muted, palette)
    return lines


def _draw_diff(diff: str, view: ViewOptions, width: int, palette: Palette) -> list[Line]:
    split = width + 4 >= MIN_SPLIT if view.is_split is None else view.is_split
    lines = draw_diff(diff, width, palette, split=split and width >= 60)
    limit = MAX_LINES if view.is_unfolded else FOLDED_DIFF
    return lines if len(lines) <= limit else [*lines[:limit], draw_more(len(lines) - limit, palette)]


def _draw_new_errors(call: CallBlock, view: ViewOptions, width: int, palette: Palette) -> list[Line]:
    """Draw what language servers found after a change: place and message, the first ones."""
    metadata: Json = (call.result.metadata or {}) if call.result else {}
    found = read_items(metadata, "diagnostics")
    lines: list[Line] = []
    for each in found if view.is_unfolded else found[:FOLDED_ERRORS]:
        place = visible_line(f"{read_text(each, 'path')}:{each.get('line', '?')}")
        message = visible_line(read_text(each, "message").removeprefix("error: "))
        text: Line = [Segment(f"{place} ", palette.muted), Segment(message, palette.error)]
        lines += indent(wrap(text, width - 2), [Segment("✗ ", palette.error)], _SPACE)
    rest = 0 if view.is_unfolded else len(found) - FOLDED_ERRORS
    return [*lines, draw_more(rest, palette)] if rest > 0 else lines


def _draw_todos(call: CallBlock, given: Json, width: int, palette: Palette) -> list[Line]:
    metadata: Json = (call.result.metadata or {}) if call.result else {}
    lines: list[Line] = []
    for todo in read_items(metadata, "todos") or read_items(given, "todos"):
        status = read_text(todo, "status")
        style = {"completed": palette.muted, "in_progress": palette.text + _BOLD}.get(status, palette.text)
        mark = Segment(
            f"{TASK_MARKS.get(status, '☐')} ", palette.success if status == "completed" else palette.secondary
        )
        lines += indent(wrap([Segment(visible(read_text(todo, "content")), style)], width - 2), [mark], _SPACE)
    return lines


def _draw_agent(
    call: CallBlock, given: Json, view: ViewOptions, width: int, palette: Palette, draw_child: DrawChild
) -> list[Line]:
    """Draw the work of a sub-agent. Its prompt and its report are drawn once: both are in its session, too."""
    output = call.output
    if view.is_unfolded:
        known = EndBlock if read_text(given, "title") else PromptBlock | EndBlock  # without a title: in the header
        children: list[Block] = [block for block in call.child if not isinstance(block, known)]
        if any(isinstance(block, TextBlock) and block.text.strip() == output.strip() for block in children):
            output = ""
    else:
        calls = [block for block in call.child if isinstance(block, CallBlock)]
        children = [*calls[-FOLDED_CHILDREN:]] if call.state == "running" else []
    lines: list[Line] = []
    bar: Line = [Segment("│ ", palette.muted)]
    for before, block in zip([None, *children], children, strict=False):
        drawn = draw_child(block, max(1, width - 2), palette)
        if before is not None and not (isinstance(before, CallBlock) and isinstance(block, CallBlock)):
            lines.append(bar)
        lines += indent(drawn if view.is_unfolded else drawn[:1], bar)
    limit = MAX_LINES if view.is_unfolded else FOLDED_OTHER
    lines = lines if len(lines) <= MAX_LINES else [draw_more(len(lines) - MAX_LINES, palette), *lines[-MAX_LINES:]]
    return lines + draw_first_lines(output, limit, width, palette.muted, palette)


def get_call_text(call: CallBlock) -> str:
    """Return the text to copy: the command or subject, and the diff or output."""
    given = correct_params(call.name, parse_partial(call.input))
    subject = read_text(given, "command") if call.name == "bash" else describe_call(call.name, given)
    return "\n".join(filter(None, [f"{call.name} {subject}".strip(), get_diff(call) or call.output]))


def describe_call(name: str, given: Json) -> str:
    """Return the subject of a call in a few words: its command, path or pattern; its parameters if unknown."""
    text = _SUBJECTS[name](given) if name in _SUBJECTS else _describe_unknown(given)
    return visible_line(text[:MAX_SUBJECT_CHARS]).strip()


def read_text(given: Json, key: str) -> str:
    value = given.get(key)
    return value if isinstance(value, str) else ""


def read_items(given: Json, key: str) -> list[Json]:
    value = given.get(key)
    if not isinstance(value, list):
        return []
    return [cast("Json", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def _describe_bash(given: Json) -> str:
    command = read_text(given, "command").strip()
    first, _, rest = command.partition("\n")
    return f"{first} …" if rest else first


def _describe_view(given: Json) -> str:
    offset, limit = given.get("offset"), given.get("limit")
    path = read_text(given, "path")
    if isinstance(offset, int) and isinstance(limit, int):
        return f"{path}:{offset}-{offset + limit - 1}"
    return f"{path}:{offset}" if isinstance(offset, int) else path


def _describe_multiedit(given: Json) -> str:
    edits = len(read_items(given, "edits"))
    return read_text(given, "path") + (f" ({edits} edits)" if edits > 1 else "")


def _describe_place(given: Json) -> str:
    symbol, path, line = read_text(given, "symbol"), read_text(given, "path"), given.get("line")
    new = f" → {read_text(given, 'new_name')}" if given.get("new_name") else ""
    return f"{symbol}{new} in {path}" + (f":{line}" if line else "")


def _describe_code_action(given: Json) -> str:
    return f"{read_text(given, 'title') or 'list'} in {read_text(given, 'path')}:{given.get('first_line', '')}"


def _describe_search(given: Json) -> str:
    path, include = read_text(given, "path"), read_text(given, "include")
    place = f" in {path}" if path and path != "." else ""
    return read_text(given, "pattern") + place + (f" ({include})" if include else "")


def _describe_download(given: Json) -> str:
    path = read_text(given, "path")
    return read_text(given, "url") + (f" → {path}" if path else "")


def _describe_todos(given: Json) -> str:
    todos = read_items(given, "todos")
    done = sum(todo.get("status") == "completed" for todo in todos)
    return f"{done} of {len(todos)} done" if todos else ""


def _describe_question(given: Json) -> str:
    questions = read_items(given, "questions")
    more = f" (+{len(questions) - 1})" if len(questions) > 1 else ""
    return read_text(questions[0], "question") + more if questions else ""


def _describe_agent(given: Json) -> str:
    return read_text(given, "title") or " ".join(read_text(given, "prompt")[:MAX_SUBJECT_CHARS].split())


def _describe_unknown(given: Json) -> str:
    shown = [f"{key}={_shorten(value)}" for key, value in given.items() if value is not None]
    return " ".join(shown) if len(given) != 1 else _shorten(next(iter(given.values())))


def _shorten(value: object) -> str:
    if isinstance(value, str):
        flat = " ".join(value[:200].split())
        return f"{flat[:60]}…" if len(value) > 60 else flat
    if isinstance(value, dict):
        return "{…}" if value else "{}"
    if isinstance(value, list):
        return f"[{len(cast('list[object]', value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


_SUBJECTS: dict[str, Callable[[Json], str]] = {
    "bash": _describe_bash,
    "view": _describe_view,
    "edit": partial(read_text, key="path"),
    "multiedit": _describe_multiedit,
    "write": partial(read_text, key="path"),
    "glob": _describe_search,
    "grep": _describe_search,
    "ls": partial(read_text, key="path"),
    "fetch": partial(read_text, key="url"),
    "web_search": partial(read_text, key="query"),
    "download": _describe_download,
    "todos": _describe_todos,
    "question": _describe_question,
    "agent": _describe_agent,
    "job_output": partial(read_text, key="job_id"),
    "job_kill": partial(read_text, key="job_id"),
    "lsp_definition": _describe_place,
    "lsp_references": _describe_place,
    "lsp_hover": _describe_place,
    "lsp_rename": _describe_place,
    "lsp_code_action": _describe_code_action,
}


Fold = Callable[[Sequence[Segment], int], list[Line]]  # `chop` for program output, `wrap` for sentences


def count_lines(text: str) -> int:
    stripped = text.rstrip("\n")
    return stripped.count("\n") + 1 if stripped else 0


def draw_first_lines(
    text: str, limit: int, width: int, style: Style, palette: Palette, fold: Fold = chop
) -> list[Line]:
    """Draw the first lines, and the number of lines left out."""
    return _draw_lines(text.split("\n", limit)[:limit], text, limit, width, style, palette, fold, at_end=True)


def draw_last_lines(text: str, limit: int, width: int, style: Style, palette: Palette) -> list[Line]:
    """Draw the number of lines left out, and the last lines."""
    shown = text.rstrip("\n").rsplit("\n", limit)[-limit:]
    return _draw_lines(shown, text, limit, width, style, palette, chop, at_end=False)


def draw_more(count: int, palette: Palette) -> Line:
    return [Segment(f"… {count:,} more line{'s' if count > 1 else ''}", palette.muted)]


def _draw_lines(
    shown: list[str], text: str, limit: int, width: int, style: Style, palette: Palette, fold: Fold, *, at_end: bool
) -> list[Line]:
    total = count_lines(text)
    if not total:
        return []
    lines: list[Line] = []
    for each in shown[:total]:
        cut = each if len(each) <= MAX_LINE_CHARS else f"{each[:MAX_LINE_CHARS]} …"
        for line in program_output(cut).split("\n"):
            lines += fold([Segment(line, style)] if line else [], width)
    rest = [draw_more(total - limit, palette)] if total > limit else []
    return [*lines, *rest] if at_end else [*rest, *lines]


MAX_PARSED_CHARS = 4_000  # of incomplete JSON: a header shows the beginning only

Json = dict[str, object]

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TRAILING = re.compile(r"[,:\s]+$")


def parse_partial(text: str) -> Json:
    """Return the object, possibly without its end; empty if there is none."""
    try:
        return _object(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        if text.rstrip().endswith(("}", "```")) and (whole := parse_tool_input(text)) is not None:
            return whole
        return _object(_repair(text[:MAX_PARSED_CHARS]))


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _repair(text: str) -> object:
    """Close open strings and brackets; if that is not JSON either, leave out the incomplete member."""
    for candidate in _candidates(text):
        try:
            return msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            continue
    return None


def _candidates(text: str) -> list[str]:
    stack: list[str] = []
    at = 0
    last_comma: tuple[int, tuple[str, ...]] | None = None  # end of the last complete member
    while at < len(text):
        character = text[at]
        if character == '"':
            match = _STRING.match(text, at)
            if match is None:
                break
            at = match.end()
            continue
        if character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]" and stack:
            stack.pop()
        elif character == ",":
            last_comma = (at, tuple(stack))
        at += 1
    closing = "".join(reversed(stack))
    rest = text[at:]
    candidates: list[str] = []
    if rest:  # inside a string: an escape sequence may be incomplete
        for cut in range(min(7, len(rest))):
            candidates.append(f'{text[: len(text) - cut]}"{closing}')
            if cut == 0 and "\\" not in rest[-6:]:
                break
        candidates.append(f'{text}":null{closing}')
        text = text[:at]
    bare = _TRAILING.sub("", text)
    candidates += [f"{bare}{closing}", f"{bare}:null{closing}"]
    if last_comma is not None:
        candidates.append(text[: last_comma[0]] + "".join(reversed(last_comma[1])))
    return [*candidates, f"{bare.rpartition('{')[0]}{{}}" if bare.startswith("{") else ""]
