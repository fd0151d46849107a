"""What undo, redo and fork may do to conversations: the part of the model that knows what is shown, and what is not.

The log tells it in one field, `undone_from` of a session: another message there is an undo, the one before it a redo;
and if it is none in the transaction of a new prompt, what was undone never comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kedge.protocol.events import Event
from kedge.protocol.messages import Message
from kedge.protocol.runs import Run
from kedge.protocol.sessions import Session
from tests.support.invariants import is_finished


@dataclass
class Rewinds:
    messages: dict[str, Message]  # all there ever were, in the order of their creation
    runs: dict[str, Run]
    is_busy: Callable[[str], bool]  # whether a run of the session, or of a sub-agent in it, is open
    may_want: Callable[[str, str], bool]  # whether somebody may have asked for this, in this session
    _undone: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # the first message of each undo
    _lost: set[str] = field(default_factory=set[str])
    _emptied: str | None = (
        None  # a session with nothing undone any more: by a redo, unless its transaction accepts a prompt
    )
    _at_birth: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])  # what was shown, anywhere

    def committed(self, event: Event) -> None:
        """To be told of every event, before the model takes it in."""
        match event.payload:
            case Run() as run if event.change == "created" and run.session_id == self._emptied:
                self._dropped(run.session_id)
            case Session() as session if event.change == "created":
                sessions = dict.fromkeys(message.session_id for message in self.messages.values())
                shown = [self.messages[id] for session_id in sessions for id in self.visible(session_id)]
                self._at_birth[session.id] = [message for message in shown if is_finished(message)]
            case Session() as session if event.change == "updated":
                self._changed(session)
            case _:
                pass

    def transaction_over(self) -> None:
        if self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            self._redone(emptied, left=[])

    def visible(self, session_id: str) -> list[str]:
        """What people and models are shown."""
        ids = [m.id for m in self.messages.values() if m.session_id == session_id and m.id not in self._lost]
        undone = self._undone.get(session_id)
        return ids[: ids.index(undone[-1])] if undone else ids

    def forked(self, source_id: str, fork_id: str, upto: str) -> None:
        """A fork begins with what its source showed then, up to the message that was named; else to the last one there
        was when somebody looked."""
        copied = [m for m in self.messages.values() if m.session_id == fork_id and m.run_id not in self.runs]
        shown = [message for message in self._at_birth[fork_id] if message.session_id == source_id]
        place = [message.id for message in shown].index(upto) + 1 if upto else len(copied)
        assert copied, f"{fork_id} has nothing of {source_id}"
        assert [(m.role, m.parts) for m in copied] == [(m.role, m.parts) for m in shown[:place]], (
            f"{fork_id} is no fork of {source_id} at {upto or 'its end'}"
        )

    def _changed(self, session: Session) -> None:
        stack, first = self._undone.setdefault(session.id, []), session.undone_from
        if first == (stack[-1] if stack else None):
            return  # it is something else that changed
        if first is None:
            self._emptied = session.id
        elif first in stack:
            self._redone(session.id, left=stack[: stack.index(first) + 1])
        else:
            assert self.may_want("undo", session.id), f"nobody wanted an undo in {session.id}"
            assert not self.is_busy(session.id), f"{session.id} is undone while it works"
            assert first in self.visible(session.id), f"{session.id}: {first} was not there to be undone"
            stack.append(first)

    def _dropped(self, session_id: str) -> None:
        self._emptied = None
        all_of_it = {message.id for message in self.messages.values() if message.session_id == session_id}
        self._lost |= all_of_it - set(self.visible(session_id))
        self._undone[session_id].clear()

    def _redone(self, session_id: str, left: list[str]) -> None:
        assert self.may_want("redo", session_id), f"nobody wanted a redo in {session_id}"
        assert not self.is_busy(session_id), f"{session_id} is redone while it works"
        assert left == self._undone[session_id][:-1], f"{session_id}: a redo takes back the last undo, and no other"
        self._undone[session_id].pop()
