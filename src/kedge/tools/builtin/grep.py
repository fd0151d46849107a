"""`grep`: lines in files, by ripgrep; files that hold secrets only when they are named."""

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
from kedge.tools.search import globs, ripgrep, verification
from kedge.tools.search.file_search import (
    MAX_RESULTS,
    Start,
    list_read_access,
    narrowed,
    newest,
    patterns_of,
    readable,
    shown,
    start_of,
)
from kedge.tools.search.verification import MAX_LINE_BYTES, Line

MAX_LINE_CHARS = 500  # of which each has four bytes at most
MAX_CONTEXT = 20
# Counted up to here; a search that finds more was not what anybody meant.
MAX_FOUND = 20_000

# Names under which people keep secrets. Examples of them (.env.example) hold none.
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


async def list_access(place: ToolScope, params: GrepParams) -> Sequence[Access]:
    return await list_read_access(place, params.path)


async def run(ctx: ToolContext, params: GrepParams) -> Output:
    start = await start_of(ctx, params.path)
    try:
        found, is_complete = await _found(ctx, start, params)
    except ripgrep.Refused as error:
        raise ToolError(_taught(str(error), params)) from error
    found = await asyncio.to_thread(verification.lines, start.base, found)
    found = {name: found[name] for name in await shown(ctx, start, found)}
    count = sum(line.is_match for lines in found.values() for line in lines)
    if not found:
        return Output(content="No matches.", metadata={"matches": 0})
    names = await asyncio.to_thread(newest, start.base, found, MAX_RESULTS)
    lines, in_files = "line" if count == 1 else "lines", "file" if len(found) == 1 else "files"
    total = f"{count if is_complete else f'over {count}'} matching {lines} in {len(found)} {in_files}"
    told = (_files_only if params.files_only else _with_lines)(start, ctx, names, found)
    return Output(content="\n".join([f"{total}.", "", *told]), metadata={"matches": count})


def _taught(refusal: str, params: GrepParams) -> str:
    """ripgrep names its own options, which the model has not: it is told what it can do instead."""
    if refusal.startswith(r'rg: the literal "\n"'):
        return (
            "grep searches line by line, so no pattern can hold a line break. Search for what is on one line and set"
            " `context`, or use bash for more."
        )
    said = refusal.split("\n\nConsider enabling")[0].removeprefix("rg: ")
    return said if params.literal else f"{said}\nSet `literal` to search for the text as it is."


async def _found(place: ToolScope, start: Start, params: GrepParams) -> tuple[dict[str, list[Line]], bool]:
    """Lines by file, and whether these are all."""
    found: dict[str, list[Line]] = {}
    count = 0
    patterns = patterns_of(start, params.include) if params.include else []
    matches = globs.matcher([globs.below(start.below, each) for each in patterns]) if patterns else None
    with ExitStack() as stack:
        options = [*narrowed(stack, start, patterns), *_options(start, params)]
        searching = ripgrep.search(start.base, place.env, options, separator=b"\n", workspace=place.directory)
        async with aclosing(searching) as search:
            async for records in search:
                for record in records:
                    name, _, said = record.partition(b"\0")
                    path = os.fsdecode(name).removeprefix("./")
                    if not said or (matches is not None and not matches(path)):
                        continue
                    line = _line(said)
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


def _line(said: bytes) -> Line:
    """`12:text` is a match, `12-text` is beside one."""
    digits = len(said) - len(said.lstrip(b"0123456789"))
    return Line(int(said[:digits] or 0), said[digits + 1 :], said[digits : digits + 1] == b":")


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]} … (cut)"


def _name(start: Start, place: ToolScope, name: str) -> str:
    return readable(name if start.base == place.directory else str(start.base / name))


def _files_only(start: Start, place: ToolScope, names: list[str], found: dict[str, list[Line]]) -> list[str]:
    lines = [_name(start, place, name) for name in names]
    if len(found) > len(names):
        lines += ["", f"(the newest {len(names)} of {len(found)} files; narrow the search for others)"]
    return lines


def _with_lines(start: Start, place: ToolScope, names: list[str], found: dict[str, list[Line]]) -> list[str]:
    shown: list[str] = []
    left = MAX_RESULTS
    for name in names:
        if left <= 0:
            break
        shown.append(_name(start, place, name))
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
