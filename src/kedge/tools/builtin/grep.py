"""`grep`: searches lines of files with ripgrep; files with secrets only if they are named."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from typing import Annotated

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.search import ripgrep
from kedge.tools.search.file_search import (
    MAX_LINE_BYTES,
    MAX_RESULTS,
    Line,
    Start,
    find_start,
    keep_visible,
    list_read_access,
    make_filter_options,
    make_matcher,
    parse_patterns,
    pick_newest,
    to_text,
    verify_lines,
)

MAX_LINE_CHARS = 500  # at most 4 bytes each: within MAX_LINE_BYTES
MAX_CONTEXT = 20
# Matches are counted up to this number.
MAX_FOUND = 20_000

# Files that usually contain secrets. Examples like .env.example do not.
SECRETS = (
    ".env", ".env.local", ".env.*.local", ".env.dev", ".env.development", ".env.prod", ".env.production",
    ".env.stage", ".env.staging", ".env.test", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore",
    "*.kdbx", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc", ".pgpass", ".htpasswd", ".git-credentials",
    ".npmrc", ".pypirc", ".aws/credentials", ".docker/config.json", ".kube/config",
)  # fmt: skip


class GrepParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, description="a regular expression")]
    path: Annotated[str, msgspec.Meta(description="a directory or a file; the workspace unless given")] = "."
    include: Annotated[str | None, msgspec.Meta(description="only files like *.py or src/**/*.{ts,tsx}")] = None
    literal: Annotated[bool, msgspec.Meta(description="the pattern is plain text")] = False
    ignore_case: bool = False
    files_only: Annotated[bool, msgspec.Meta(description="only the names of files that match")] = False
    context: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT, description="lines around each match")] = 0


async def list_access(scope: ToolScope, params: GrepParams) -> Sequence[Access]:
    return await list_read_access(scope, params.path)


async def run(ctx: ToolContext, params: GrepParams) -> Output:
    start = await find_start(ctx, params.path)
    try:
        found, is_complete = await _search(ctx, start, params)
    except ripgrep.RipgrepError as error:
        raise ToolError(*_explain_error(str(error), params)) from error
    found = await asyncio.to_thread(verify_lines, start.base, found)
    found = {name: found[name] for name in await keep_visible(ctx, start, found)}
    count = sum(line.is_match for lines in found.values() for line in lines)
    if not found:
        return Output(content="No matches.", metadata={"matches": 0})
    names = await asyncio.to_thread(pick_newest, start.base, found, MAX_RESULTS)
    lines, in_files = "line" if count == 1 else "lines", "file" if len(found) == 1 else "files"
    total = f"{count if is_complete else f'over {count}'} matching {lines} in {len(found)} {in_files}"
    shown = (_files_only if params.files_only else _with_lines)(start, ctx, names, found)
    return Output(content="\n".join([f"{total}.", "", *shown]), metadata={"matches": count})


def _explain_error(refusal: str, params: GrepParams) -> tuple[str, str]:
    """Return the problem, and advice about this tool's parameters instead of ripgrep's about its own options."""
    if refusal.startswith(r'rg: the literal "\n"'):
        return (
            "grep searches line by line, so no pattern can contain a line break.",
            "Search for a part on one line and set `context`, or use bash for more.",
        )
    message = refusal.split("\n\nConsider enabling")[0].removeprefix("rg: ")
    return message, "" if params.literal else "\nSet `literal` to search for the text as it is."


async def _search(scope: ToolScope, start: Start, params: GrepParams) -> tuple[dict[str, list[Line]], bool]:
    """Return matching lines by file, and whether they are complete."""
    found: dict[str, list[Line]] = {}
    count = 0
    patterns = parse_patterns(start, params.include) if params.include else []
    matches = make_matcher(start, patterns)
    with ExitStack() as stack:
        options = [*make_filter_options(stack, start, patterns), *_options(start, params)]
        searching = ripgrep.run_ripgrep(start.base, scope.env, options, separator=b"\n", workspace=scope.directory)
        async with aclosing(searching) as search:
            async for records in search:
                for record in records:
                    name, _, text = record.partition(b"\0")
                    path = os.fsdecode(name).removeprefix("./")
                    if not text or (matches is not None and not matches(path)):
                        continue
                    line = _parse_line(text)
                    found.setdefault(path, []).append(line)
                    count += line.is_match
                if count > MAX_FOUND:
                    return found, False
    return found, True


def _options(start: Start, params: GrepParams) -> list[str]:
    options = ["--null", "--line-number", "--no-heading", "--with-filename", "--no-context-separator"]
    options += [f"--max-columns={MAX_LINE_BYTES}", "--max-columns-preview", f"--context={params.context}"]
    options += ["--fixed-strings"] if params.literal else []
    options += ["--ignore-case"] if params.ignore_case else []
    named = {params.include, os.path.basename(start.below)}  # noqa: PTH119 text, not a path that is opened
    for secret in SECRETS:
        if secret not in named:
            options += ["-g", f"!{secret}"]
    return [*options, "-e", params.pattern, "--", start.below]


def _parse_line(text: bytes) -> Line:
    """`12:text` is a match, `12-text` is beside one."""
    digits = len(text) - len(text.lstrip(b"0123456789"))
    return Line(int(text[:digits] or 0), text[digits + 1 :], text[digits : digits + 1] == b":")


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]} … (cut)"


def _name(start: Start, scope: ToolScope, name: str) -> str:
    return to_text(name if start.base == scope.directory else str(start.base / name))


def _files_only(start: Start, scope: ToolScope, names: list[str], found: dict[str, list[Line]]) -> list[str]:
    lines = [_name(start, scope, name) for name in names]
    if len(found) > len(names):
        lines += ["", f"(the newest {len(names)} of {len(found)} files; narrow the search for others)"]
    return lines


def _with_lines(start: Start, scope: ToolScope, names: list[str], found: dict[str, list[Line]]) -> list[str]:
    shown: list[str] = []
    left = MAX_RESULTS
    for name in names:
        if left <= 0:
            break
        shown.append(_name(start, scope, name))
        for line in found[name]:
            if line.is_match:
                left -= 1
            if left < 0:
                shown.append("  … more in this file")
                break
            shown.append(f"  {line.number or ''}{':' if line.is_match else '-'} {_text(line.raw)}")
        shown.append("")
    if sum(line.is_match for lines in found.values() for line in lines) > MAX_RESULTS:
        shown.append(f"(only the first {MAX_RESULTS} are shown; narrow the search, or set files_only)")
    return shown


TOOL = Tool(facts=BUILT_IN_TOOLS["grep"], params=GrepParams, run=run, list_access=list_access)
