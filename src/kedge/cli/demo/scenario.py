"""Tells the story: it is the client, the one who pulls the plug, and the one who checks that nothing was lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kedge.cli.demo.reader import Reader, text_of
from kedge.cli.demo.script import Plot, first_words, make_plot, words
from kedge.cli.demo.server_process import Frame, Server

RUNS = ("r1", "r2", "r3", "r4", "r5", "r6", "r7")


class Narrator:
    def __init__(self, seed: int, directory: Path, print_line: Callable[[str], None]) -> None:
        self._plot: Plot = make_plot(seed)
        self._directory = directory
        self._print = print_line
        self._anna = Reader("anna", lambda line: print_line(f"  {line}"))
        self._failed = 0
        self._chapters = 0
        self._server = Server(directory)
        self._sessions: list[str] = []

    def tell(self) -> bool:
        """Play it all; true if every check held."""
        try:
            self._a_prompt_is_streamed_and_steered()
            self._one_asks_a_person()
            self._one_is_cancelled()
            self._the_server_dies()
            self._the_next_server_goes_on()
            self._the_person_answers()
            self._the_reckoning()
        finally:
            self._server.kill()
        return not self._failed

    def _a_prompt_is_streamed_and_steered(self) -> None:
        plot, anna = self._plot, self._anna
        self._chapter(
            "Two sessions, and a prompt that is steered while it streams",
            "Anna watches from the first event on. There is no model here: a prompt is a small script for the turn.",
            "A line with # is an event of the log, with its place; a line with ~ is told live and is not kept.",
        )
        anna.connect(self._server)
        anna.read_until(lambda f: f.type == "caught_up")
        for title in plot.sessions:
            self._sessions.append(self._server.call("create_session", title=title)["id"])
            anna.read_until(lambda f: f.type == "session")
        prompt = f"say {plot.look}\ntool grep {plot.hits}\nsay {plot.find}"
        self._server.call("hold", words=plot.steer_after)
        receipt = self._accept("r1", 0, prompt)
        anna.read_until_text("r1", first_words(plot.look, plot.steer_after))
        again = self._accept("r1", 0, prompt)
        self._check(
            "sent once more, r1 is the same run: same receipt, nothing runs twice (P3)",
            again["replayed"] and again["seq"] == receipt["seq"],
        )
        self._accept("r2", 0, f"say {plot.extra}", on_busy="steer")
        self._server.call("release")
        end = anna.read_until_end("r1")
        joined = anna.read_until_end("r2")
        self._check(
            "r2 joined the turn of r1 at a step boundary; both end together, with the same answer (P5)",
            end["message_id"] == joined["message_id"] and end["text"] == joined["text"] == plot.extra,
        )

    def _one_asks_a_person(self) -> None:
        self._chapter(
            f"In {self._plot.sessions[1]}, r3 asks a person before it acts; r4 waits in the queue",
            "Nobody answers yet. The question is a row, not a dialogue in somebody's window.",
        )
        self._accept("r3", 1, f"ask {self._plot.tool} done\nsay {self._plot.lasts[0]}")
        self._anna.read_until(lambda f: f.type == "permission_request")
        self._accept("r4", 1, f"say {self._plot.lasts[1]}")
        self._anna.read_until(is_run("r4", "queued"))

    def _one_is_cancelled(self) -> None:
        plot, anna = self._plot, self._anna
        self._chapter(
            f"In {plot.sessions[0]}, r5 is cancelled in the middle of a tool",
            "The cancel is committed first; then the turn is stopped, and its record is made whole.",
        )
        self._server.call("hold", words=1 + plot.cancel_after)
        self._accept("r5", 0, f"tool make {plot.build}")
        anna.read_until_text("r5", first_words(plot.build, plot.cancel_after))
        self._server.call("cancel_run", run_id="r5")
        end = anna.read_until_end("r5")
        results = [part for f in anna.of("message", run_id="r5", role="tool") for part in f.payload["parts"]]
        self._check(
            "r5 ended cancelled, its tool call has a result, and no client got an error for it (P6, P7)",
            end.get("cancelled") is True and results[-1]["is_error"] and not anna.of("agent_event", run_id="r5"),
        )

    def _the_server_dies(self) -> None:
        plot, anna, server = self._plot, self._anna, self._server
        self._chapter(
            "kill -9, in the middle of a sentence",
            "r6 has finished one step and streams the next; r7 is queued behind it; r3 still waits for a person.",
        )
        server.call("hold", words=words(plot.plan) + plot.crash_after)
        self._accept("r6", 0, f"say {plot.plan}\nsay {plot.speech}")
        seen = first_words(plot.speech, plot.crash_after)
        message_id = anna.read_until_text("r6", seen)
        self._accept("r7", 0, "say Good night.")
        anna.read_until(is_run("r7", "queued"))
        while server.saved.get(message_id, 0) < len(seen):
            server.hear()
        code = server.kill()
        self._note("The server process gets SIGKILL, here. Anna's connection is gone with it.")
        self._check("the server is dead, killed by signal 9", code == -signal.SIGKILL)

    def _the_next_server_goes_on(self) -> None:
        plot, anna = self._plot, self._anna
        last_seen = len(anna.events)
        self._chapter(
            "A new server opens the same directory",
            f"It decides what the dead one left, before Anna is back. She comes with her cursor, #{anna.cursor}.",
        )
        request_id = anna.of("permission_request")[0].payload["id"]
        self._server = Server(self._directory, words=1)
        while not self._server.is_held:
            self._server.hear()
        anna.connect(self._server)
        anna.read_until(lambda f: f.type == "caught_up")
        missed = anna.events[last_seen:]
        self._check(
            f"Anna got the {len(missed)} events that happened while she was away (P9)",
            len(missed) > 0 and not any(f.type == "stream_reset" for f in missed),
        )
        cut = [f.payload for f in missed if f.type == "message" and finish_of(f) == "interrupted"]
        self._check(
            "the half sentence is kept as she saw it, marked as interrupted (P12)",
            [text_of(message) for message in cut] == [first_words(plot.speech, plot.crash_after)],
        )
        self._check(
            "the request of r3 is still pending, under the same id, and was told again (P14)",
            [r["id"] for r in self._server.call("permissions")] == [request_id]
            and [f.payload["id"] for f in anna.reminders if f.type == "permission_request"] == [request_id],
        )
        self._note("Now r6 goes on under its own id, from its last finished step; then r7 runs.")
        self._server.call("release")
        end = anna.read_until_end("r6")
        anna.read_until_end("r7")
        plans = [f for f in anna.of("message", run_id="r6") if text_of(f.payload) == plot.plan]
        self._check(
            "r6 is the same run in its second attempt; its finished step was not repeated (P13)",
            end["text"] == plot.speech
            and len(plans) == 1
            and anna.of("run", run_id="r6", state="completed")[0].payload["attempt"] == 2,
        )

    def _the_person_answers(self) -> None:
        plot, anna = self._plot, self._anna
        self._chapter(
            "The person answers, after the restart",
            f"Anna says {plot.action}. Ben answers too, a moment later. Then r4, queued all the while, has its turn.",
        )
        request_id = anna.of("permission_request")[0].payload["id"]
        first = self._server.call("grant", id=request_id, action=plot.action, by="anna")
        anna.read_until_end("r3")
        late = self._server.call("grant", id=request_id, action="deny", by="ben")
        anna.read_until_end("r4")
        self._check(
            "the first answer won, and the late one was told who was faster (P14)",
            first == {"resolved": True, "by": "anna", "action": plot.action}
            and late == {"resolved": False, "by": "anna", "action": plot.action},
        )

    def _the_reckoning(self) -> None:
        anna = self._anna
        self._chapter(
            "The reckoning",
            "The log keeps no copies: the store builds each event again, from the rows that it tells of.",
        )
        head, stored = self._server.call("log")
        self._check(
            f"{len(RUNS)} runs were accepted, and each ended exactly once, as its last event (P1, P2)",
            all([f.type for f in events_of(anna, run_id)].count("run_complete") == 1 for run_id in RUNS)
            and all(events_of(anna, run_id)[-1].type == "run_complete" for run_id in RUNS),
        )
        seqs = [f.seq for f in anna.events]
        self._check(
            f"Anna, cut off once, read {len(seqs)} events: #1 to #{head}, none missing, none twice (P9)",
            seqs == list(range(1, head + 1)),
        )
        self._check(
            "what she saw live, from two servers, is byte for byte what the log says (P9)",
            [f.raw for f in anna.events] == stored,
        )
        self._check("the server left in good order when it was told to (P15)", self._server.stop() == 0)
        self._print("")
        self._print("Every promise held." if not self._failed else f"{self._failed} checks FAILED.")

    def _accept(self, run_id: str, session: int, prompt: str, on_busy: str = "queue") -> dict[str, Any]:
        return self._server.call(
            "accept", run_id=run_id, session_id=self._sessions[session], prompt=prompt, on_busy=on_busy
        )

    def _chapter(self, title: str, *notes: str) -> None:
        self._chapters += 1
        self._print("")
        self._print(f"{self._chapters}. {title}")
        for note in notes:
            self._note(note)

    def _note(self, text: str) -> None:
        self._print(f"   {text}")

    def _check(self, text: str, holds: bool) -> None:
        self._failed += not holds
        self._print(f"   {'ok' if holds else 'FAILED'}: {text}")


def is_run(run_id: str, state: str) -> Callable[[Frame], bool]:
    return lambda f: f.type == "run" and f.payload["run_id"] == run_id and f.payload["state"] == state


def events_of(reader: Reader, run_id: str) -> list[Frame]:
    return [f for f in reader.events if f.payload.get("run_id") == run_id]


def finish_of(frame: Frame) -> str | None:
    return next((part["reason"] for part in frame.payload["parts"] if part["type"] == "finish"), None)
