"""`kedge session`: list, show, rename, delete and export conversations, and choose their model."""

from __future__ import annotations

import os
import time

from kedge.cli import session_files
from kedge.cli.common import EXIT_OK, command, connect, json_line, one_line, print_json, print_table
from kedge.cli.options import Options, UsageError, named
from kedge.cli.run_options import EFFORTS, as_text
from kedge.client.markdown import as_markdown
from kedge.client.story import escape
from kedge.client.sync import Client
from kedge.protocol.text_safety import visible_line

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
"""
FLAGS = named("--all", "--json", *session_files.FLAGS)
VALUES = named("-o --output", "--effort", *session_files.VALUES)


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP + session_files.HELP, flags=FLAGS, values=VALUES, go=_dispatch)


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


ACTIONS = {
    "list": _list,
    "show": _show,
    "rename": _rename,
    "model": _model,
    "delete": _delete,
    "export": _export,
    **session_files.ACTIONS,
}
