"""Everything that can happen to a server: calls of clients, failures, and their random order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from kedge.engine.engine import Engine
from kedge.protocol.errors import KedgeError
from kedge.protocol.files import Restore
from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import Mode, Run, RunOptions, Submission
from kedge.protocol.sessions import SessionChange
from kedge.store.port import Retention
from tests.sim.model import Call
from tests.sim.reader import Reader
from tests.sim.world import World


class Clients:
    """Each action starts one thing and returns at once; what comes of it is told to the model."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._model = world.model
        self._sent: list[tuple[str, Submission]] = []
        self._calls = 0
        self.actions: dict[str, tuple[int, Callable[[], None]]] = {
            "submit": (30, self.submit),
            "submit again": (5, self.submit_again),
            "submit another under the same name": (2, self.submit_conflicting),
            "cancel session": (6, self.cancel_session),
            "cancel run": (6, self.cancel_run),
            "clear the queue": (2, self.clear_queue),
            "drop one": (3, self.drop_one),
            "move one": (6, self.move_one),
            "promote one": (4, self.promote_one),
            "switch a mode": (5, self.switch_mode),
            "answer": (12, self.answer),
            "revoke": (3, self.revoke),
            "wait": (4, self.wait),
            "new reader": (3, self.new_reader),
            "new session": (1, self.new_session),
            "rename session": (1, self.rename_session),
            "name session": (1, self.name_session),
            "delete session": (1, self.delete_session),
            "undo": (8, self.undo),
            "redo": (4, self.redo),
            "fork": (2, self.fork),
            "retention": (2, self.retain),
        }

    # runs

    def submit(self) -> None:
        kind = self._rng.choices(("prompt", "shell", "summarize"), (8, 1, 1))[0]
        submission = Submission(
            session_id=self._session(),
            prompt="" if kind == "summarize" else self._world.scripts.script(),
            kind=kind,
            on_busy=self._rng.choices(("queue", "steer", "interrupt", "reject"), (4, 4, 2, 1))[0],
            permissions=self._rng.choices(("ask", "deny", "allow"), (6, 1, 1))[0],
            model=self._rng.choices((None, "maker/other"), (9, 1))[0],
            options=self._rng.choices((RunOptions(), RunOptions(max_steps=5), RunOptions(mode="plan")), (8, 1, 1))[0],
        )
        self._submit(submission, times=self._rng.choices((1, 3), (9, 1))[0])

    def _submit(self, submission: Submission, times: int = 1) -> None:
        run_id = f"r{len(self._sent) + 1}"
        self._sent.append((run_id, submission))
        for _ in range(times):
            self._accept(run_id, submission)

    def submit_again(self) -> None:
        if self._sent:
            self._accept(*self._rng.choice(self._sent))

    def submit_conflicting(self) -> None:
        if self._sent:
            run_id, sent = self._rng.choice(self._sent)
            other = Submission(session_id=sent.session_id, prompt=self._world.scripts.script(), kind="prompt")
            self._accept(run_id, other)

    def _accept(self, run_id: str, submission: Submission) -> None:
        call = Call("accept", submission.session_id, run_id, submission)
        env = {"CALLER": run_id} if self._rng.random() < 0.5 else None
        self._call(call, lambda e, w: e.runs.accept(w, submission, run_id=run_id, env=env))

    def cancel_session(self) -> None:
        call = Call("cancel_session", self._session())
        self._call(call, lambda e, w: e.store.cancel_session(w, call.session_id))

    def cancel_run(self) -> None:
        if run := self._run():
            self.cancel(run)

    def cancel(self, run: Run) -> None:
        call = Call("cancel_run", run.session_id, run.run_id)
        self._call(call, lambda e, w: e.store.cancel_run(w, run.run_id))

    def clear_queue(self) -> None:
        call = Call("clear", self._session())
        self._call(call, lambda e, w: e.store.drop_queued(w, call.session_id, None))

    def drop_one(self) -> None:
        if run := self._run("queued"):
            call = Call("drop", run.session_id, run.run_id)
            self._call(call, lambda e, w: e.store.drop_queued(w, run.session_id, run.run_id))

    def move_one(self) -> None:
        if run := self._run("queued"):
            others = [each.run_id for each in self._model.open_runs(run.session_id) if each.state == "queued"]
            before = self._rng.choice([*others, None])
            call = Call("move", run.session_id, run.run_id, before=before)
            self._call(call, lambda e, w: e.store.move_queued(w, run.session_id, run.run_id, before))

    def promote_one(self) -> None:
        if run := self._run("queued"):
            on_busy: Literal["steer", "interrupt"] = self._rng.choice(("steer", "steer", "interrupt"))
            call = Call("promote", run.session_id, run.run_id, on_busy=on_busy)
            self._call(call, lambda e, w: e.store.promote_queued(w, run.session_id, run.run_id, on_busy))

    def switch_mode(self) -> None:
        if run := self._run():
            mode: Mode = self._rng.choice(("plan", "ask", "yolo"))
            call = Call("mode", run.session_id, run.run_id, mode=mode)
            self._call(call, lambda e, w: e.store.switch_mode(w, run.run_id, mode))

    def wait(self) -> None:
        if run := self._run():
            call = Call("wait", run.session_id, run.run_id)
            self._call(call, lambda e, w: e.runs.wait_end(w, run.run_id))

    # requests to a person

    def answer(self) -> None:
        known = [*self._model.pending.values(), *self._model.pending.values()]
        ids = [request.id for request in known] + list(self._model.answers)[-3:]
        if ids:
            self._answer(self._rng.choice(ids))

    def answer_all(self) -> None:
        for request_id in list(self._model.pending):
            self._answer(request_id)

    def _answer(self, request_id: str) -> None:
        self._calls += 1
        call = Call("answer", target=request_id, by=f"client-{self._calls}")
        request = self._model.pending.get(request_id)
        if isinstance(request, PermissionRequest) or (request is None and self._rng.random() < 0.5):
            action = self._rng.choice(("allow", "allow_session", "deny"))
            self._call(call, lambda e, w: e.answer_permission(w, request_id, action, call.by))
        else:
            answers: list[object] | None = self._rng.choice((None, ["yes"]))
            self._call(call, lambda e, w: e.answer_question(w, request_id, answers, call.by))

    def revoke(self) -> None:
        """Mostly what was allowed for a session, and sometimes what is no grant, or is one of another session."""
        granted = [each for each in self._model.answers.values() if each.action == "allow_session"]
        if granted:
            grant = self._rng.choice(granted)
            call = Call("revoke", grant.session_id if self._rng.random() < 0.9 else self._session(), grant.id)
            self._call(call, lambda e, w: _revoke(e, w, call))

    # sessions

    def new_session(self) -> None:
        self._call(Call("create"), lambda e, w: e.create_session(w, "new"))

    def rename_session(self) -> None:
        call = Call("rename", self._session())
        self._call(call, lambda e, w: e.change_session(w, call.session_id, SessionChange(title="renamed")))

    def name_session(self) -> None:
        """As a model does that writes titles."""
        call = Call("retitle", self._session())
        self._call(call, lambda e, w: e.store.retitle_session(w, call.session_id, "new", "named"))

    def delete_session(self) -> None:
        call = Call("delete", self._session())
        self._call(call, lambda e, w: e.delete_session(w, call.session_id))

    # what was said, taken back

    def undo(self) -> None:
        parents = [each.parent_session_id for each in self._model.sessions.values() if each.parent_session_id]
        is_parent = bool(parents) and self._rng.random() < 0.5
        call = Call("undo", self._rng.choice(parents) if is_parent else self._session())
        if is_parent:
            self._world.when_half_undone = self._prompt_a_sub_agent
        call.target = self._message(call.session_id) if self._rng.random() < 0.3 else ""
        is_dry = self._rng.random() < 0.1
        self._world.dies_in_an_undo |= self._rng.random() < 0.2
        restore: Restore = self._rng.choice(("both", "both", "files", "conversation"))
        is_sure = self._rng.random() < 0.5
        self._call(
            call,
            lambda e, w: e.undos.undo(
                *(w, call.session_id, call.target or None), dry_run=is_dry, restore=restore, include_unsure=is_sure
            ),
        )

    def _prompt_a_sub_agent(self, restoring: list[str]) -> None:
        """While the files of its parent are being restored: chance alone would hardly ever meet that."""
        known = [each.id for each in self._model.sessions.values() if each.parent_session_id in restoring]
        if known:
            self._submit(Submission(session_id=self._rng.choice(known), prompt=self._world.scripts.script()))

    def redo(self) -> None:
        call = Call("redo", self._session())
        self._call(call, lambda e, w: e.undos.redo(w, call.session_id))

    def fork(self) -> None:
        call = Call("fork", self._session())
        call.target = self._message(call.session_id) if self._rng.random() < 0.5 else ""
        has_files = self._rng.random() < 0.5
        self._call(
            call,
            lambda e, w: e.undos.fork(w, call.session_id, call.target or None, with_files=has_files, force=True),
        )

    def _message(self, session_id: str) -> str:
        """Any of a session, also one that was undone."""
        known = [message.id for message in self._model.messages.values() if message.session_id == session_id]
        return self._rng.choice(known) if known else ""

    def retain(self) -> None:
        policy = Retention(
            max_age_s=self._rng.choice((0, 1, 30, 1e9)), max_bytes=self._rng.choice((0, 2_000, 20_000, 1 << 30))
        )
        self._call(Call("retain"), lambda e, _: e.store.retain(policy))

    def new_reader(self) -> None:
        if len(self._world.readers) < 6:
            session_id = self._session() if self._rng.random() < 0.3 else None
            self.add_reader(session_id=session_id)

    def add_reader(self, *, session_id: str | None = None, is_attentive: bool = False) -> None:
        name = f"reader {len(self._world.readers) + 1}" + (f" of {session_id}" if session_id else "")
        reader = Reader(
            name, self._rng, self._model, self._world.floor, session_id=session_id, is_attentive=is_attentive
        )
        self._world.readers.append(reader)
        self._world.start_reader(reader)

    # how a call is made

    def _session(self) -> str:
        """Any session, also one that is gone; of sub-agents, now and then."""
        sessions = list(self._model.sessions.values())
        mine = [session.id for session in sessions if session.parent_session_id is None]
        return self._rng.choice(mine if self._rng.random() < 0.9 else [session.id for session in sessions])

    def _run(self, state: str | None = None) -> Run | None:
        runs = [run for run in self._model.open_runs() if state in (None, run.state)]
        if (not runs or self._rng.random() < 0.1) and self._model.runs:
            runs = list(self._model.runs.values())
        return self._rng.choice(runs) if runs else None

    def _call(self, call: Call, ask: Callable[[Engine, str], Awaitable[object]]) -> None:
        world = self._world
        self._calls += 1
        number = self._calls
        named = " ".join(str(word) for word in (call.kind, call.session_id, call.target) if word)
        if call.submission is not None:
            named += f" [{call.submission.on_busy}] {call.submission.kind} {call.submission.prompt!r}"
        world.say(f"{number:4} > {named}")
        self._model.asked(call)

        async def make() -> None:
            try:
                call.result = await ask(world.engine, world.workspace_id)
            except KedgeError as error:
                call.error = error
            except asyncio.CancelledError:
                world.say(f"{number:4} < no answer")
                raise
            world.say(f"{number:4} < {call.error!r}" if call.error else f"{number:4} < {_short(call.result)}")
            self._model.answered(call)

        task = world.spawn(make())
        if self._rng.random() < 0.05:
            world.loop.call_later(self._rng.random() * 0.02, task.cancel)  # the caller goes away


def _short(result: object) -> str:
    text = str(result)
    return text if len(text) <= 160 else f"{text[:160]}…"


async def _revoke(engine: Engine, workspace_id: str, call: Call) -> list[str]:
    """Revoke a grant; return those that the session has then."""
    await engine.store.revoke_grant(workspace_id, call.session_id, call.target)
    return [grant.id for grant in await engine.store.grants(workspace_id, call.session_id)]
