"""A simple command of a script, with all that it runs in turn: in its words, in shell text, for each file it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import msgspec

from kedge.tools.permissions import wrappers
from kedge.tools.permissions.ground import Directories
from kedge.tools.permissions.options import names
from kedge.tools.permissions.pieces import Command, Opaque, Piece
from kedge.tools.permissions.words import Word

_KEYWORDS = names("if then elif else fi for while until do done case esac select function in [[ ]] !")


class Scene(msgspec.Struct, frozen=True):
    """What surrounds a command where it stands."""

    directories: Directories
    functions: Collection[str]  # that are defined above it
    nested: Callable[[str, Directories], list[Piece]]  # the pieces of shell text that it runs


def made(words: tuple[Word, ...], assigned: tuple[Word, ...], scene: Scene, *, is_direct: bool) -> Piece:
    """`is_direct`: it stands in the script itself, where a function may have its name."""
    text = " ".join(word.shown for word in words)
    name = words[0].text
    if name is None or words[0].is_glob:
        return Opaque(why="which command it runs is not known", text=text)
    if not name or re.search(r"[\s{}()]", name) or name in _KEYWORDS:
        # `! if …` and `time { …` are read by the grammar as commands of that name.
        return Opaque(why=f"{name!r} is no name of a command", text=text)
    command = Command(
        words=words,
        assigned=assigned,
        directories=scene.directories,
        is_function=is_direct and name in scene.functions,
    )
    return _with_inner(command, scene)


def _with_inner(command: Command, scene: Scene) -> Command:
    inner, is_wrapper = _run_by(command, scene)
    if (command.words[0].text or "").rpartition("/")[2] == "find":
        rest, runs = wrappers.found_by_find(command.words)
        if runs:
            is_wrapper = True
            inner.append(msgspec.structs.replace(command, words=rest))
            inner += [made(run, (), scene, is_direct=False) for run in runs if run]
    is_wrapper = is_wrapper and wrappers.is_of_the_system(command.words[0].text or "")
    return msgspec.structs.replace(command, inner=tuple(inner), is_wrapper=is_wrapper)


def _run_by(command: Command, scene: Scene) -> tuple[list[Piece], bool]:
    """What a wrapper runs, and whether that counts instead of it."""
    words = command.words
    is_plain = all(wrappers.is_harmless_assignment(word) for word in command.assigned)
    match wrappers.unwrap(words):
        case None:
            return [], False
        case "unclear":
            return [Opaque(why=f"what {words[0].shown} runs is not known", text=command.text)], True
        case wrappers.Through(()):  # alone: redirections of this shell, or nothing
            return [], words[0].text in ("exec", "time") and is_plain
        case wrappers.Through(through, assigned):
            return [made(through, (*command.assigned, *assigned), scene, is_direct=False)], True
        case wrappers.Code(code, is_certain):
            inner = scene.nested(code, scene.directories)
            if not is_certain:
                inner.append(Opaque(why="another shell than bash reads it", text=code[:200]))
            if not is_plain:
                inner.append(Opaque(why="it sets variables that the commands obey", text=command.text))
            return inner, True
        case wrappers.Beside(beside, code):
            inner = [made(beside, (), scene, is_direct=False)] if beside else []
            return inner + ([] if code is None else scene.nested(code, None)), False
