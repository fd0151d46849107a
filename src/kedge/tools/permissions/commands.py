"""A command line before the law: every piece of it must be let through, and the least of them decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kedge.tools.permissions import git, suggestions
from kedge.tools.permissions.decisions import Allow, Refuse
from kedge.tools.permissions.ground import resolve_all
from kedge.tools.permissions.law import PLANNING, Found, Law, Trouble, refused
from kedge.tools.permissions.options import names
from kedge.tools.permissions.pieces import Command, Opaque, Piece, Touch
from kedge.tools.permissions.readonly import reads_of
from kedge.tools.permissions.rules import Rule
from kedge.tools.permissions.script import pieces_of
from kedge.tools.permissions.words import Word
from kedge.tools.permissions.wrappers import is_harmless_assignment

MAX_SHOWN_CHARS = 120
# They look at a directory, and not into its files.
_LISTING = names("ls du df tree find stat file realpath readlink echo printf basename dirname")


def examine(law: Law, command: str, directory: str) -> Found:
    """`directory`: where it starts, resolved."""
    if (rule := law.whole_rule(law.deny, "execute")) is not None:
        return refused(rule, "to run commands")
    pieces = pieces_of(command, law.ground, frozenset({directory}))
    for piece in _all(pieces):
        if (rule := _denied(law, piece)) is not None:
            return refused(rule, f"to run `{_shown(piece.text)}`")
    if law.mode != "plan" and (rule := law.whole_rule(law.allow, "execute")) is not None:
        return Allow(why=f"the rule {rule.text}", by="rule")
    troubles = _merged([_judged(law, piece) for piece in pieces])
    if isinstance(troubles, Refuse):
        return troubles
    if not troubles:
        return _allowed(law, pieces)
    if law.mode == "plan" and not all(trouble.is_read for trouble in troubles):
        return Refuse(why=f"{PLANNING}: {'; '.join(dict.fromkeys(trouble.note for trouble in troubles))}.")
    return troubles


def _allowed(law: Law, pieces: Sequence[Piece]) -> Allow:
    named = [piece for piece in pieces if isinstance(piece, Command)]
    if law.mode != "plan" and named and all(_ruled(law, piece, law.allow) for piece in named):
        return Allow(why="the rules for its commands", by="rule")
    if any(_ruled(law, piece, law.grants) for piece in named):
        return Allow(why="allowed for this session", by="grant")
    return Allow(why="all that it does is let through")


def _judged(law: Law, piece: Piece) -> Refuse | list[Trouble]:
    match piece:
        case Opaque(why=why, text=text):
            return [Trouble(f"`{_shown(text)}`: {why}")]
        case Touch(kind=kind, paths=paths):
            return _touched(law, kind, paths)
        case Command():
            return _judged_command(law, piece)


def _judged_command(law: Law, command: Command) -> Refuse | list[Trouble]:
    doubt = next((rule for rule in _bash(law, law.deny) if _match(rule, command, is_denial=True) == "maybe"), None)
    if doubt is not None:
        return [Trouble(f"`{_shown(command.text)}`: it may be what the rule {doubt.text!r} forbids")]
    if law.mode != "plan" and (_ruled(law, command, law.allow) or _ruled(law, command, law.grants)):
        return []
    if command.is_function and all(is_harmless_assignment(word) for word in command.assigned):
        return []
    if command.is_wrapper:
        return _merged([_judged(law, piece) for piece in command.inner])
    return _read_only(law, command)


def _read_only(law: Law, command: Command) -> Refuse | list[Trouble]:
    shown = f"`{_shown(command.text)}`"
    if not all(is_harmless_assignment(word) for word in command.assigned):
        return [Trouble(f"{shown}: it sets variables that the command obeys")]
    reads = reads_of(command.words)
    if reads is None:
        return [Trouble(f"{shown}: not known to be read-only", suggestions.rule_for_command(command))]
    paths = _paths(command, reads)
    if paths is None:
        return [Trouble(f"{shown}: which files it reads is not known", suggestions.rule_for_command(command))]
    if command.words[0].shown.endswith("git") and any(_is_in_planted_repository(path, law) for path in paths):
        return [Trouble(f"{shown}: the repository there brings its own settings, which may run programs")]
    if any(Path(path).is_dir() for path in paths):
        name = command.words[0].shown.rpartition("/")[2]
        if name == "diff":
            return [Trouble(f"{shown}: it follows the links in a directory", suggestions.rule_for_command(command))]
        if law.hides_some and name not in _LISTING and (name != "git" or Word("grep") in command.words):
            return [Trouble(f"{shown}: it may read what a rule forbids; the grep tool leaves that out", is_read=True)]
    return _merged([law.read(path) for path in paths])


def _paths(command: Command, reads: Sequence[Word]) -> list[str] | None:
    found: list[str] = []
    for word in reads:
        paths = None if word.text is None else resolve_all(command.directories, word.text, is_glob=word.is_glob)
        if paths is None:
            return None
        found += paths
    return found


def _touched(law: Law, kind: str, paths: Sequence[str]) -> Refuse | list[Trouble]:
    return _merged([law.write(path) if kind == "write" else law.read(path) for path in paths])


def _merged(found: Sequence[Found]) -> Refuse | list[Trouble]:
    troubles: list[Trouble] = []
    for each in found:
        if isinstance(each, Refuse):
            return each
        if isinstance(each, list):
            troubles += each
    return troubles


# rules


def _denied(law: Law, piece: Piece) -> Rule | None:
    match piece:
        case Opaque():
            return None
        case Touch(kind=kind, paths=paths):
            found = _touched(law, kind, paths)
        case Command():
            for rule in _bash(law, law.deny):
                if _match(rule, piece, is_denial=True) == "yes":
                    return rule
            reads = reads_of(piece.words)
            found = _merged([law.read(path) for path in (_paths(piece, reads) if reads else None) or ()])
    if isinstance(found, Refuse) and found.rule is not None:
        return next(rule for rule in law.deny if rule.text == found.rule)
    return None


def _bash(law: Law, rules: Sequence[Rule]) -> Iterator[Rule]:
    return (rule for rule in rules if rule.name == "bash" and rule.words is not None and law.tool_name == "bash")


def _ruled(law: Law, command: Command, rules: Sequence[Rule]) -> bool:
    return any(_match(rule, command, is_denial=False) == "yes" for rule in _bash(law, rules))


def _match(rule: Rule, command: Command, *, is_denial: bool) -> str:
    """An allowing rule sees the words as they are; a forbidding one also what they come down to."""
    if not is_denial:
        is_plain = all(is_harmless_assignment(word) for word in command.assigned)
        return rule.matches_words(command.words if is_plain else (*command.assigned, *command.words))
    found = {rule.matches_words(words) for words in _forms(command)}
    return "yes" if "yes" in found else "maybe" if "maybe" in found else "no"


def _forms(command: Command) -> Iterator[Sequence[Word]]:
    yield command.words
    name = command.words[0].text or ""
    bare = msgspec.structs.replace(command.words[0], text=name.rpartition("/")[2])
    yield (bare, *command.words[1:])
    if bare.text == "git":
        yield git.without_globals((bare, *command.words[1:]))


def _all(pieces: Sequence[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        yield piece
        if isinstance(piece, Command):
            yield from _all(piece.inner)


def _is_in_planted_repository(path: str, law: Law) -> bool:
    """A bare repository among the files: git would take its settings, and they may name programs to run."""
    if not law.ground.is_in_workspace(path):
        return False
    where = Path(path)
    for directory in (where, *where.parents):
        if (directory / ".git").exists():
            return False
        # Git does not mind a HEAD that leads nowhere, or that the rest is where `commondir` says.
        if _is_there(directory / "HEAD") and (_is_there(directory / "objects") or _is_there(directory / "commondir")):
            return True
    return False


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_SHOWN_CHARS else flat[: MAX_SHOWN_CHARS - 1] + "…"
