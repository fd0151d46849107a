"""`kedge session undo|redo|fork|files|diff`: what a conversation did to files, and the way back."""

from __future__ import annotations

import sys

from kedge.cli.common import one_line, print_json, print_table
from kedge.cli.options import UsageError
from kedge.client.obstacles import UNSURE, why
from kedge.client.story import escape, query
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kedge.cli.options import Options
    from kedge.client.sync import Client

HELP = """
usage: kedge session undo [ID] | redo [ID] | fork [ID] | files [ID] | diff [ID]

What a conversation did to files, and the way back; without an ID, of the one used last. undo brings files and
conversation back to before its last prompt, redo takes that back, fork makes a new one that goes on from here.

      --message ID        undo: everything from this message on; fork: everything up to it
      --dry-run           only say what would become of which file
      --force             undo, fork: overwrite what somebody else changed since (redo brings it back)
      --include-unsure    undo, fork: also undo what a background job or an interrupted command may have changed;
                          some of it may be your own work (redo brings it back)
      --with-files        fork: bring the files back to that message, too
      --run ID            files, diff: of this run alone
"""
FLAGS = ("--dry-run", "--force", "--include-unsure", "--with-files")
VALUES = ("--message", "--run")


def undo(client: Client, words: list[str], options: Options) -> None:
    body = {
        "message_id": options.get("message"),
        "force": options.has("force"),
        "include_unsure": options.has("include-unsure"),
    }
    _rewind(
        client, words, options, "undo", body, lambda it: f"undone; take it back with: kedge session redo {it['id']}"
    )


def redo(client: Client, words: list[str], options: Options) -> None:
    _rewind(client, words, options, "redo", {}, lambda _: "done again")


def fork(client: Client, words: list[str], options: Options) -> None:
    body = {
        "message_id": options.get("message"),
        "with_files": options.has("with-files"),
        "force": options.has("force"),
        "include_unsure": options.has("include-unsure"),
    }
    _rewind(client, words, options, "fork", body, lambda it: f"made {it['id']}")


def files(client: Client, words: list[str], options: Options) -> None:
    found = _files(client, words, options, with_diffs=False)
    if options.has("json"):
        print_json(found)
        return
    rows = [(f["status"], f"+{f['added']} -{f['removed']}", f["path"]) for f in found["files"]]
    print_table([("STATUS", "LINES", "FILE"), *rows] if rows else [])
    _note(found["notes"])


def diff(client: Client, words: list[str], options: Options) -> None:
    found = _files(client, words, options, with_diffs=True)
    if options.has("json"):
        print_json(found)
        return
    for file in found["files"]:
        print(file.get("diff") or f"{file['path']}: too much to show\n", end="")
    _note(found["notes"])


def _files(client: Client, words: list[str], options: Options, *, with_diffs: bool) -> dict[str, Any]:
    wanted = query(run_id=options.get("run"), diff="true" if with_diffs else None)
    return client.call("GET", f"/sessions/{escape(_session(client, words))}/files{wanted}")


def _rewind(
    client: Client,
    words: list[str],
    options: Options,
    what: str,
    body: dict[str, Any],
    done: Callable[[dict[str, Any]], str],
) -> None:
    """It is said what will be touched before anything is."""
    path = f"/sessions/{escape(_session(client, words))}/{what}"
    plan = client.call("POST", path, {**body, "dry_run": True})
    is_json = options.has("json")
    if not is_json:
        for file in plan["files"]:
            left = f"  ({why(file['obstacle'])})" if file.get("obstacle") else ""
            does = "left" if file.get("obstacle") in UNSURE else file["status"]
            print(f"{does:<8}  {visible_line(file['path'])}{left}", flush=True)
        _note(plan["notes"])
        if any(file.get("obstacle") in UNSURE for file in plan["files"]):
            again = "" if options.has("dry-run") else "redo this, then "
            _note([f"what may be your own work is left as it is; {again}undo with --include-unsure takes it back, too"])
    if options.has("dry-run"):
        if is_json:
            print_json(plan)
        elif not plan["files"]:
            taken = f"; it takes back: {one_line(plan['prompt'])}" if plan.get("prompt") else ""
            print(f"no file changes{taken}")
        return
    result = client.call_once("POST", path, body)
    print_json(result) if is_json else print(done(result))


def _note(notes: list[str]) -> None:
    for note in notes:
        print(f"kedge: {one_line(note, 400)}", file=sys.stderr)


def _session(client: Client, words: list[str]) -> str:
    from kedge.cli.session import found  # which lists these actions among its own

    if words:
        return found(client, words)["id"]
    if (session := client.latest_session()) is not None:
        return session["id"]
    raise UsageError("there is no session in this workspace yet; 'kedge run PROMPT' begins one")


ACTIONS = {"undo": undo, "redo": redo, "fork": fork, "files": files, "diff": diff}
