"""`kedge session`: list, show, rename, delete and export conversations, and choose their model."""

from __future__ import annotations

import os
import sys
import time

from kedge.cli.common import EXIT_OK, command, connect
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import json_line, print_json, print_table
from kedge.cli.run_options import EFFORTS, as_text
from kedge.client.http1 import build_query, escape
from kedge.client.markdown import as_markdown
from kedge.client.obstacles import UNSURE, why
from kedge.client.sync_client import Client
from kedge.protocol.text_safety import one_line, visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


HELP = """\
usage: kedge session list [QUERY] | show ID | rename ID TITLE | model ID [NAME] | delete ID | export ID

Conversations of this workspace; an ID may be cut short as long as it is unique. The model of a session is that of its
runs that name none (kedge run -s ID -m NAME is for one run); - as a name clears it, and without one it is shown.

      --effort EFFORT     model: minimal, low, medium or high, how much it thinks first; - clears it
  -o, --output FILE       export into this file instead of standard output
      --all               list: also those of sub-agents
      --json              as the server has it: one session or message a line

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
FLAGS = named("--all", "--json", "--dry-run", "--force", "--include-unsure", "--with-files")
VALUES = named("-o --output", "--effort", "--message", "--run")


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values=VALUES, go=_dispatch)


def _dispatch(options: Options) -> int:
    verb, *words = options.words or [""]
    action = ACTIONS.get(verb)
    if action is None:
        raise UsageError(f"say what to do: {', '.join(ACTIONS)}")
    with connect(options, name="kedge session") as client:
        action(client, words, options)
    return EXIT_OK


def _list(client: Client, words: list[str], options: Options) -> None:
    listed = client.sessions(" ".join(words) or None)
    sessions = [each for each in listed if options.has("all") or not each.get("parent_session_id")]
    if options.has("json"):
        for each in sessions:
            print_json(each)
    elif sessions:
        rows = [
            (s["id"], _when(s["updated_at"]), _choice(s) or "-", one_line(s["title"]) or "(untitled)") for s in sessions
        ]
        table = [("SESSION", "LAST USED", "MODEL", "TITLE"), *rows]
        if not any(map(_choice, sessions)):  # nobody chose one: nothing to show
            table = [(row[0], row[1], row[3]) for row in table]
        print_table(table)


def _choice(session: dict[str, Any]) -> str:
    """The model and the effort of a session, where somebody chose them."""
    effort = session.get("effort")
    return " ".join(filter(None, [visible_line(session.get("model") or ""), effort and f"({effort})"]))


def _show(client: Client, words: list[str], options: Options) -> None:
    session = found(client, words)
    if (choice := _choice(session)) and not options.has("json"):
        print(f"*(model: {choice})*\n")
    _write(client, session["id"], options, print)


def _rename(client: Client, words: list[str], options: Options) -> None:
    session, title = found(client, words[:1]), " ".join(words[1:])
    if not title.strip():
        raise UsageError("say the new title: kedge session rename ID TITLE")
    renamed = client.call("PATCH", f"/sessions/{escape(session['id'])}", {"title": title})
    print_json(renamed) if options.has("json") else print(f"renamed {renamed['id']}")


def _model(client: Client, words: list[str], options: Options) -> None:
    effort = options.choice("effort", (*EFFORTS, "-"))
    given = {"model": as_text(words[1]) if len(words) > 1 else None, "effort": effort}
    change = {name: None if value == "-" else value for name, value in given.items() if value is not None}
    if len(words) > 2:
        raise UsageError("name one model: kedge session model ID PROVIDER/NAME; - is what is configured")
    session = found(client, words[:1])
    if change:
        session = client.call("PATCH", f"/sessions/{escape(session['id'])}", change)
    if options.has("json"):
        print_json(session)
    else:
        print(f"{session['id']} uses {_choice(session) or 'what is configured'}")


def _delete(client: Client, words: list[str], options: Options) -> None:
    session = found(client, words)
    client.call("DELETE", f"/sessions/{escape(session['id'])}")
    print_json({"deleted": session["id"]}) if options.has("json") else print(f"deleted {session['id']}")


def _export(client: Client, words: list[str], options: Options) -> None:
    session = found(client, words)
    target = options.get("output")
    if target is None:
        _write(client, session["id"], options, print, title=session["title"])
        return
    try:
        with open(target, "w", encoding="utf-8", errors="replace") as file:
            _write(client, session["id"], options, lambda text: file.write(f"{text}\n"), title=session["title"])
    except OSError as error:
        raise UsageError(f"cannot write {target} ({error.strerror})") from error


def _write(
    client: Client,
    session_id: str,
    options: Options,
    write: Callable[[str], object],
    title: str | None = None,
) -> None:
    is_for_terminal = options.get("output") is None and os.isatty(1)
    if title is not None and not options.has("json"):
        write(f"# {title or session_id}\n")
    for message in client.messages(session_id):
        if options.has("json"):
            write(json_line(message, is_for_terminal=is_for_terminal))
        elif text := as_markdown(message):
            write(text)


def found(client: Client, words: list[str]) -> dict[str, Any]:
    """The session with this id, or the only one whose id begins like that."""
    if len(words) != 1 or not words[0]:
        raise UsageError("name one session; 'kedge session list' shows them")
    sessions = client.sessions()
    exact = [session for session in sessions if session["id"] == words[0]]
    matching = exact or [session for session in sessions if session["id"].startswith(words[0])]
    if len(matching) == 1:
        return matching[0]
    problem = f"{len(matching)} sessions begin with" if matching else "there is no session"
    raise UsageError(f"{problem} {words[0]!r} in this workspace; 'kedge session list' shows them")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _undo(client: Client, words: list[str], options: Options) -> None:
    body = {
        "message_id": options.get("message"),
        "force": options.has("force"),
        "include_unsure": options.has("include-unsure"),
    }
    _rewind(
        client, words, options, "undo", body, lambda it: f"undone; take it back with: kedge session redo {it['id']}"
    )


def _redo(client: Client, words: list[str], options: Options) -> None:
    _rewind(client, words, options, "redo", {}, lambda _: "done again")


def _fork(client: Client, words: list[str], options: Options) -> None:
    body = {
        "message_id": options.get("message"),
        "with_files": options.has("with-files"),
        "force": options.has("force"),
        "include_unsure": options.has("include-unsure"),
    }
    _rewind(client, words, options, "fork", body, lambda it: f"made {it['id']}")


def _files(client: Client, words: list[str], options: Options) -> None:
    found = _read_files(client, words, options, with_diffs=False)
    if options.has("json"):
        print_json(found)
        return
    rows = [(f["status"], f"+{f['added']} -{f['removed']}", f["path"]) for f in found["files"]]
    print_table([("STATUS", "LINES", "FILE"), *rows] if rows else [])
    _note(found["notes"])


def _diff(client: Client, words: list[str], options: Options) -> None:
    found = _read_files(client, words, options, with_diffs=True)
    if options.has("json"):
        print_json(found)
        return
    for file in found["files"]:
        print(file.get("diff") or f"{file['path']}: too much to show\n", end="")
    _note(found["notes"])


def _read_files(client: Client, words: list[str], options: Options, *, with_diffs: bool) -> dict[str, Any]:
    wanted = build_query(run_id=options.get("run"), diff="true" if with_diffs else None)
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
    if words:
        return found(client, words)["id"]
    if (session := client.latest_session()) is not None:
        return session["id"]
    raise UsageError("there is no session in this workspace yet; 'kedge run PROMPT' begins one")


ACTIONS = {
    "list": _list,
    "show": _show,
    "rename": _rename,
    "model": _model,
    "delete": _delete,
    "export": _export,
    "undo": _undo,
    "redo": _redo,
    "fork": _fork,
    "files": _files,
    "diff": _diff,
}
