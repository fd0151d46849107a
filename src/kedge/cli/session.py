"""`kedge session`: list, show, rename, delete, export, undo and fork sessions, and choose their model."""

from __future__ import annotations

import os
import time

from kedge.cli.common import EXIT_OK, connect, require_run, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import describe_cost, json_line, print_error, print_json, print_table
from kedge.cli.run_options import EFFORTS, as_text
from kedge.client.sync_client import Client
from kedge.client.texts import render_markdown
from kedge.http.http1 import build_query, escape
from kedge.protocol.obstacles import UNSURE, describe_obstacle
from kedge.protocol.text_safety import one_line, visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


HELP = """\
usage: kedge session [list [QUERY]] | show ID | rename ID TITLE | model ID [NAME] | delete ID | export ID
       kedge sessions [QUERY]

Work with the sessions of this workspace. "list" (or nothing) lists them, the most recent first. The start of an ID is
enough if it is unique. "model" sets the model for runs that do not name one ("-" clears it) or, without NAME, shows it.

      --effort EFFORT     model: reasoning effort (minimal, low, medium, high, xhigh, max; "-" clears it)
  -o, --output FILE       export: write to this file instead of standard output
      --all               list: include sessions of sub-agents
      --json              print JSON, one session or message per line

usage: kedge session undo [ID] | redo [ID] | fork [ID] | files [ID] | diff [ID] | timeline [ID]

Show or undo what a session did to files (default: the most recent session). "undo" restores files and conversation to
the state before the last prompt, "redo" reverts the undo, and "fork" continues in a copy of the session. "timeline"
lists the prompts with their message IDs and what each command and edit changed, and the undos.

      --message ID        undo: everything from this message on; fork: everything up to it
      --files-only        undo: restore the files, and keep the conversation
      --conversation-only undo: go back in the conversation, and leave the files as they are
      --dry-run           only show what would happen to which file
      --force             undo, fork: overwrite files that were changed since by others (redo restores them)
      --include-unsure    undo, fork: also restore files that a background job or an interrupted command may have
                          changed; some changes may be yours (redo restores them)
      --with-files        fork: also restore the files to the state at that message
      --run ID            files, diff: only changes of this run; the start of its ID is enough
"""
LISTED_MORE = 200  # sessions of other directories that may be among the newest

FLAGS = named(
    *("--all", "--json", "--dry-run", "--force", "--include-unsure", "--with-files"),
    *("--files-only", "--conversation-only"),
)
VALUES = named("-o --output", "--effort", "--message", "--run")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_dispatch)


def _dispatch(options: Options) -> int:
    action, words = options.subcommand(ACTIONS, otherwise="list")
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
        costs = _read_costs(client, sessions)
        rows = [
            (
                each["id"],
                _format_time(each["updated_at"]),
                costs.get(each["id"], "-"),
                _describe_model(each) or "-",
                one_line(each["title"]) or "(untitled)",
            )
            for each in sessions
        ]
        table = [("SESSION", "LAST USED", "COST", "MODEL", "TITLE"), *rows]
        if not any(map(_describe_model, sessions)):
            table = [(*row[:3], row[4]) for row in table]
        print_table(table)
    elif words:
        print_error(f"No session of this workspace matches {' '.join(words)!r}", EXIT_OK)
    else:
        print_error("No sessions in this workspace yet. Start one with 'kedge run PROMPT'", EXIT_OK)


def _read_costs(client: Client, sessions: list[dict[str, Any]]) -> dict[str, str]:
    """Return what each session has cost, by its ID; those that cost nothing are left out."""
    limit = min(1000, len(sessions) + LISTED_MORE)
    listed = client.transport.call("GET", f"/v1/sessions?limit={limit}", policy=client.new_policy())["sessions"]
    return {each["id"]: describe_cost(each["usage"]) for each in listed}


def _describe_model(session: dict[str, Any]) -> str:
    """The model and the effort that were chosen for a session; empty if none were."""
    effort = session.get("effort")
    return " ".join(filter(None, [visible_line(session.get("model") or ""), effort and f"({effort})"]))


def _show(client: Client, words: list[str], options: Options) -> None:
    session = find_session(client, words)
    if (choice := _describe_model(session)) and not options.has("json"):
        print(f"*(model: {choice})*\n")
    _print_messages(client, session["id"], options)


def _rename(client: Client, words: list[str], options: Options) -> None:
    session, title = find_session(client, words[:1]), " ".join(words[1:])
    if not title.strip():
        raise UsageError("Missing title. Use kedge session rename ID TITLE")
    renamed = client.call("PATCH", f"/sessions/{escape(session['id'])}", {"title": title})
    print_json(renamed) if options.has("json") else print(f"Renamed {renamed['id']}.")


def _model(client: Client, words: list[str], options: Options) -> None:
    effort = options.choice("effort", (*EFFORTS, "-"))
    given = {"model": as_text(words[1]) if len(words) > 1 else None, "effort": effort}
    change = {name: None if value == "-" else value for name, value in given.items() if value is not None}
    if len(words) > 2:
        raise UsageError("Name one model: kedge session model ID PROVIDER/NAME ('-' for the configured one)")
    session = find_session(client, words[:1])
    if change:
        session = client.call("PATCH", f"/sessions/{escape(session['id'])}", change)
    if options.has("json"):
        print_json(session)
    else:
        print(f"{session['id']} uses {_describe_model(session) or 'the configured model'}.")


def _delete(client: Client, words: list[str], options: Options) -> None:
    session = find_session(client, words)
    client.call("DELETE", f"/sessions/{escape(session['id'])}")
    print_json({"deleted": session["id"]}) if options.has("json") else print(f"Deleted {session['id']}.")


def _export(client: Client, words: list[str], options: Options) -> None:
    session = find_session(client, words)
    target = options.get("output")
    title = "" if options.has("json") else f"# {session['title'] or session['id']}\n"
    if target is None:
        _print_messages(client, session["id"], options, title=title)
        return
    try:
        with open(target, "w", encoding="utf-8", errors="replace") as file:
            _print_messages(client, session["id"], options, title=title, file=file)
    except OSError as error:
        raise UsageError(f"Could not write {target} ({error.strerror})") from error


def _print_messages(
    client: Client, session_id: str, options: Options, *, title: str = "", file: TextIO | None = None
) -> None:
    is_for_terminal = options.get("output") is None and os.isatty(1)
    if title:
        print(title, file=file)
    for message in client.messages(session_id):
        if options.has("json"):
            print(json_line(message, is_for_terminal=is_for_terminal), file=file)
        elif text := render_markdown(message):
            print(text, file=file)


def find_session(client: Client, words: list[str]) -> dict[str, Any]:
    """Find the session with this ID, or the only one whose ID starts like that. Raises `UsageError`."""
    if len(words) != 1 or not words[0]:
        raise UsageError("Name one session ('kedge session list' shows them)")
    sessions = client.sessions()
    exact = [session for session in sessions if session["id"] == words[0]]
    matching = exact or [session for session in sessions if session["id"].startswith(words[0])]
    if len(matching) == 1:
        return matching[0]
    problem = f"{len(matching)} sessions start with" if matching else "No session"
    raise UsageError(f"{problem} {words[0]!r} in this workspace ('kedge session list' shows them)")


def _undo(client: Client, words: list[str], options: Options) -> None:
    _rewind(client, words, options, "undo", "Undone. To revert: kedge session redo {id}")


def _redo(client: Client, words: list[str], options: Options) -> None:
    _rewind(client, words, options, "redo", "Redone.")


def _fork(client: Client, words: list[str], options: Options) -> None:
    _rewind(client, words, options, "fork", "Created {id}.")


def _files(client: Client, words: list[str], options: Options, *, with_diffs: bool = False) -> None:
    run_id, session_id = None, None
    if (named := options.get("run")) is not None:
        run = require_run(client, named)
        run_id, session_id = run["run_id"], run["session_id"]
    if session_id is None or words:
        session_id = _choose_session(client, words)
    query = build_query(run_id=run_id, diff="true" if with_diffs else None)
    found = client.call("GET", f"/sessions/{escape(session_id)}/files{query}")
    if options.has("json"):
        print_json(found)
        return
    if with_diffs:
        for file in found["files"]:
            print(file.get("diff") or f"{file['path']}: too large to show\n", end="")
    else:
        rows = [(f["status"], f"+{f['added']} -{f['removed']}", f["path"]) for f in found["files"]]
        print_table([("STATUS", "LINES", "FILE"), *rows] if rows else [])
    if not found["files"]:
        print_error("No file was changed", EXIT_OK)
    _print_notes(found["notes"])


def _diff(client: Client, words: list[str], options: Options) -> None:
    _files(client, words, options, with_diffs=True)


def _rewind(client: Client, words: list[str], options: Options, what: str, done: str) -> None:
    """Print the plan before anything is changed, then carry it out unless `--dry-run` was given."""
    path = f"/sessions/{escape(_choose_session(client, words))}/{what}"
    body: dict[str, Any] = {}
    if what != "redo":
        body["message_id"] = options.get("message")
        body |= {name: options.has(name.replace("_", "-")) for name in ("force", "include_unsure")}
    if what == "fork":
        body["with_files"] = options.has("with-files")
    if what == "undo":
        body["restore"] = _read_restore(options)
    plan = client.call("POST", path, {**body, "dry_run": True})
    is_json = options.has("json")
    if not is_json:
        for file in plan["files"]:
            reason = f"  ({describe_obstacle(file['obstacle'])})" if file.get("obstacle") else ""
            status = "left" if file.get("obstacle") in UNSURE else file["status"]
            print(f"{status:<8}  {visible_line(file['path'])}{_describe_lines(file)}{reason}", flush=True)
        _print_notes(plan["notes"])
        if any(file.get("obstacle") in UNSURE for file in plan["files"]):
            how = "use" if options.has("dry-run") else "redo this, then undo with"
            _print_notes(
                [f"Files that you may have changed yourself were left. To restore them too, {how} --include-unsure"]
            )
    if options.has("dry-run"):
        if is_json:
            print_json(plan)
        elif not plan["files"]:
            prompt = f"; would undo the prompt: {one_line(plan['prompt'])}" if plan.get("prompt") else "."
            print(f"No file changes{prompt}")
        return
    result = client.call_once("POST", path, body)
    print_json(result) if is_json else print(done.format(id=result["id"]))


def _read_restore(options: Options) -> str:
    if options.has("files-only") and options.has("conversation-only"):
        raise UsageError("Use either --files-only or --conversation-only, not both")
    return "files" if options.has("files-only") else "conversation" if options.has("conversation-only") else "both"


def _describe_lines(file: dict[str, Any]) -> str:
    added, removed = file.get("added"), file.get("removed")
    return "" if added is None or removed is None or added == removed == 0 else f"  +{added} -{removed}"


_UNDONE = {"files": "files", "conversation": "conversation", "both": "files and conversation"}


def _timeline(client: Client, words: list[str], options: Options) -> None:
    found = client.call("GET", f"/sessions/{escape(_choose_session(client, words))}/timeline")
    if options.has("json"):
        print_json(found)
        return
    prompts = {turn["message_id"]: turn["prompt"] for turn in found["turns"]}
    if found["omitted"]:
        print(f"({found['omitted']} earlier prompts)")
    for entry in sorted([*found["turns"], *found["undos"]], key=lambda entry: entry["seq"]):
        if "restore" in entry:
            what = f"{entry['state'].replace('dropped', 'undone')}: {_UNDONE[entry['restore']]}"
            print(f"↶ {what} from “{one_line(prompts.get(entry['message_id'], entry['message_id']), 60)}” on")
            continue
        mark = "" if entry["state"] == "current" else "  (undone)"
        print(f"{entry['message_id']}  {_format_time(entry['created_at'])}  {one_line(entry['prompt'], 80)}{mark}")
        for call in entry["calls"]:
            print(f"    {call['tool']}{'  ' + one_line(call['command'], 90) if call.get('command') else ''}")
            for file in call["files"]:
                doubt = f"  ? {describe_obstacle(file['unsure'])}" if file.get("unsure") else ""
                gone = "  (undone)" if file.get("undone") else ""
                print(f"      {file['status']:<8}  {visible_line(file['path'])}{_describe_lines(file)}{doubt}{gone}")
            if call.get("more"):
                print(f"      and {call['more']} more files")
    _print_notes(found["notes"])


def _format_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        print_error(one_line(note, 400), EXIT_OK)


def _choose_session(client: Client, words: list[str]) -> str:
    if words:
        return find_session(client, words)["id"]
    if (session := client.latest_session()) is not None:
        return session["id"]
    raise UsageError("No sessions in this workspace yet. Start one with 'kedge run PROMPT'")


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
    "timeline": _timeline,
}
