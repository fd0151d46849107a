"""What a tool call is about, in a few words: a command, a path, a pattern; of an unknown tool, what its JSON says."""

from __future__ import annotations

from typing import cast

from kedge.protocol.text_safety import visible_line
from kedge.tui.chat.partial_json import Json

MAX_SUBJECT_CHARS = 500  # a header is one line, however long the command


def subject(name: str, given: Json) -> str:
    told = _SUBJECTS[name](given) if name in _SUBJECTS else _any(given)
    return visible_line(told[:MAX_SUBJECT_CHARS]).strip()


def text(given: Json, key: str) -> str:
    value = given.get(key)
    return value if isinstance(value, str) else ""


def items(given: Json, key: str) -> list[Json]:
    value = given.get(key)
    if not isinstance(value, list):
        return []
    return [cast("Json", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def _bash(given: Json) -> str:
    command = text(given, "command").strip()
    first, _, rest = command.partition("\n")
    return f"{first} …" if rest else first


def _view(given: Json) -> str:
    offset, limit = given.get("offset"), given.get("limit")
    path = text(given, "path")
    if isinstance(offset, int) and isinstance(limit, int):
        return f"{path}:{offset}-{offset + limit - 1}"
    return f"{path}:{offset}" if isinstance(offset, int) else path


def _multiedit(given: Json) -> str:
    edits = len(items(given, "edits"))
    return text(given, "path") + (f" ({edits} edits)" if edits > 1 else "")


def _glob(given: Json) -> str:
    return _inside(text(given, "pattern"), given)


def _grep(given: Json) -> str:
    include = text(given, "include")
    return _inside(text(given, "pattern"), given) + (f" ({include})" if include else "")


def _inside(pattern: str, given: Json) -> str:
    path = text(given, "path")
    return f"{pattern} in {path}" if path and path != "." else pattern


def _download(given: Json) -> str:
    path = text(given, "path")
    return text(given, "url") + (f" → {path}" if path else "")


def _url(given: Json) -> str:
    return text(given, "url")


def _todos(given: Json) -> str:
    todos = items(given, "todos")
    done = sum(todo.get("status") == "completed" for todo in todos)
    return f"{done} of {len(todos)} done" if todos else ""


def _question(given: Json) -> str:
    questions = items(given, "questions")
    more = f" (+{len(questions) - 1})" if len(questions) > 1 else ""
    return text(questions[0], "question") + more if questions else ""


def _agent(given: Json) -> str:
    return text(given, "title") or " ".join(text(given, "prompt")[:MAX_SUBJECT_CHARS].split())


def _job(given: Json) -> str:
    return text(given, "job_id")


def _path(given: Json) -> str:
    return text(given, "path")


def _any(given: Json) -> str:
    shown = [f"{key}={_short(value)}" for key, value in given.items() if value is not None]
    return " ".join(shown) if len(given) != 1 else _short(next(iter(given.values())))


def _short(value: object) -> str:
    if isinstance(value, str):
        flat = " ".join(value[:200].split())
        return f"{flat[:60]}…" if len(value) > 60 else flat
    if isinstance(value, dict):
        return "{…}" if value else "{}"
    if isinstance(value, list):
        return f"[{len(cast('list[object]', value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


_SUBJECTS = {
    "bash": _bash,
    "view": _view,
    "edit": _path,
    "multiedit": _multiedit,
    "write": _path,
    "glob": _glob,
    "grep": _grep,
    "ls": _path,
    "fetch": _url,
    "download": _download,
    "todos": _todos,
    "question": _question,
    "agent": _agent,
    "job_output": _job,
    "job_kill": _job,
}
