"""The steps of the demo: it is the client of the server, kills it, and checks that nothing was lost."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kedge.cli.demo.server_process import Frame, Reader, ServerProcess, join_text

RUNS = ("r1", "r2", "r3", "r4", "r5", "r6", "r7")


class Scenario:
    def __init__(self, seed: int, directory: Path, print_line: Callable[[str], None]) -> None:
        self._script: Script = make_script(seed)
        self._directory = directory
        self._print = print_line
        self._anna = Reader("anna", lambda line: print_line(f"  {line}"))
        self._failed_checks = 0
        self._section_count = 0
        self._server = ServerProcess(directory)
        self._sessions: list[str] = []

    def play(self) -> bool:
        """Run all steps; returns whether every check passed."""
        try:
            self._stream_and_steer()
            self._ask_permission()
            self._cancel_run()
            self._kill_server()
            self._restart_server()
            self._answer_permission()
            self._compare_with_log()
        finally:
            self._server.kill()
        return not self._failed_checks

    def _stream_and_steer(self) -> None:
        script, anna = self._script, self._anna
        self._begin_section(
            "Two sessions, and a prompt that is steered while it streams",
            "Anna follows from the first event on. No model is used: each prompt is a small script for the turn.",
            "Lines with # are events of the log, with their number; lines with ~ are live only and not stored.",
        )
        anna.connect(self._server)
        anna.read_until(lambda f: f.type == "caught_up")
        for title in script.sessions:
            self._sessions.append(self._server.call("create_session", title=title)["id"])
            anna.read_until(lambda f: f.type == "session")
        prompt = f"say {script.look}\ntool grep {script.hits}\nsay {script.find}"
        self._server.call("pause", after=script.steer_after)
        receipt = self._submit("r1", 0, prompt)
        anna.read_until_text("r1", first_words(script.look, script.steer_after))
        again = self._submit("r1", 0, prompt)
        self._check(
            "submitted again, r1 is the same run: same receipt, nothing runs twice (P3)",
            again["replayed"] and again["seq"] == receipt["seq"],
        )
        self._submit("r2", 0, f"say {script.extra}", on_busy="steer")
        self._server.call("resume")
        end = anna.read_until_end("r1")
        joined = anna.read_until_end("r2")
        self._check(
            "r2 joined the turn of r1 at a step boundary; both end together, with the same answer (P5)",
            end["message_id"] == joined["message_id"] and end["text"] == joined["text"] == script.extra,
        )

    def _ask_permission(self) -> None:
        self._begin_section(
            f"In {self._script.sessions[1]}, r3 asks for permission; r4 waits in the queue",
            "Nobody answers yet. The request is stored, so it survives a restart.",
        )
        self._submit("r3", 1, f"ask {self._script.tool} done\nsay {self._script.lasts[0]}")
        self._anna.read_until(lambda f: f.type == "permission_request")
        self._submit("r4", 1, f"say {self._script.lasts[1]}")
        self._anna.read_until(is_run("r4", "queued"))

    def _cancel_run(self) -> None:
        script, anna = self._script, self._anna
        self._begin_section(
            f"In {script.sessions[0]}, r5 is canceled in the middle of a tool",
            "The cancel is committed first; then the turn is stopped, and its messages are completed.",
        )
        self._server.call("pause", after=1 + script.cancel_after)
        self._submit("r5", 0, f"tool make {script.build}")
        anna.read_until_text("r5", first_words(script.build, script.cancel_after))
        self._server.call("cancel_run", run_id="r5")
        end = anna.read_until_end("r5")
        results = [part for f in anna.find("message", run_id="r5", role="tool") for part in f.payload["parts"]]
        self._check(
            "r5 ended canceled, its tool call has a result, and no client got an error for it (P6, P7)",
            end.get("cancelled") is True and results[-1]["is_error"] and not anna.find("agent_event", run_id="r5"),
        )

    def _kill_server(self) -> None:
        script, anna, server = self._script, self._anna, self._server
        self._begin_section(
            "kill -9 in the middle of a sentence",
            "r6 has finished one step and streams the next; r7 is queued behind it; r3 still waits for an answer.",
        )
        server.call("pause", after=count_words(script.plan) + script.crash_after)
        self._submit("r6", 0, f"say {script.plan}\nsay {script.speech}")
        seen = first_words(script.speech, script.crash_after)
        message_id = anna.read_until_text("r6", seen)
        self._submit("r7", 0, "say Good night.")
        anna.read_until(is_run("r7", "queued"))
        while server.saved.get(message_id, 0) < len(seen):
            server.read_line()
        code = server.kill()
        self._print_note("The server process is killed here, and Anna's connection with it.")
        self._check("the server is dead, killed by signal 9", code == -signal.SIGKILL)

    def _restart_server(self) -> None:
        script, anna = self._script, self._anna
        last_seen = len(anna.events)
        self._begin_section(
            "A new server opens the same directory",
            f"It recovers what the old one left; then Anna reconnects, with her cursor, #{anna.cursor}.",
        )
        request_id = anna.find("permission_request")[0].payload["id"]
        self._server = ServerProcess(self._directory, pause_after=1)
        while not self._server.is_paused:
            self._server.read_line()
        anna.connect(self._server)
        anna.read_until(lambda f: f.type == "caught_up")
        missed = anna.events[last_seen:]
        self._check(
            f"Anna got the {len(missed)} events that happened while she was away (P9)",
            len(missed) > 0 and not any(f.type == "stream_reset" for f in missed),
        )
        cut = [f.payload for f in missed if f.type == "message" and find_finish_reason(f) == "interrupted"]
        self._check(
            "the half sentence is kept as she saw it, marked as interrupted (P12)",
            [join_text(message) for message in cut] == [first_words(script.speech, script.crash_after)],
        )
        self._check(
            "the request of r3 is still pending, under the same id, and was sent again (P14)",
            [r["id"] for r in self._server.call("permissions")] == [request_id]
            and [f.payload["id"] for f in anna.reminders if f.type == "permission_request"] == [request_id],
        )
        self._print_note("Now r6 continues under its own id, from its last finished step; then r7 runs.")
        self._server.call("resume")
        end = anna.read_until_end("r6")
        anna.read_until_end("r7")
        plans = [f for f in anna.find("message", run_id="r6") if join_text(f.payload) == script.plan]
        self._check(
            "r6 is the same run in its second attempt; its finished step was not repeated (P13)",
            end["text"] == script.speech
            and len(plans) == 1
            and anna.find("run", run_id="r6", state="completed")[0].payload["attempt"] == 2,
        )

    def _answer_permission(self) -> None:
        script, anna = self._script, self._anna
        self._begin_section(
            "The permission is answered after the restart",
            f"Anna answers {script.action}. Ben answers too, a moment later. Then r4, still queued, runs.",
        )
        request_id = anna.find("permission_request")[0].payload["id"]
        first = self._server.call("grant", id=request_id, action=script.action, by="anna")
        anna.read_until_end("r3")
        late = self._server.call("grant", id=request_id, action="deny", by="ben")
        anna.read_until_end("r4")
        self._check(
            "the first answer counts, and the late one learns whose that was (P14)",
            first == {"resolved": True, "by": "anna", "action": script.action}
            and late == {"resolved": False, "by": "anna", "action": script.action},
        )

    def _compare_with_log(self) -> None:
        anna = self._anna
        self._begin_section(
            "Comparison with the log",
            "The log stores no copies: the store rebuilds each event from its rows.",
        )
        head, stored = self._server.call("log")
        self._check(
            f"{len(RUNS)} runs were accepted, and each ended exactly once, as its last event (P1, P2)",
            all([f.type for f in find_events(anna, run_id)].count("run_complete") == 1 for run_id in RUNS)
            and all(find_events(anna, run_id)[-1].type == "run_complete" for run_id in RUNS),
        )
        seqs = [f.seq for f in anna.events]
        self._check(
            f"Anna, disconnected once, read {len(seqs)} events: #1 to #{head}, none missing, none twice (P9)",
            seqs == list(range(1, head + 1)),
        )
        self._check(
            "what she received live, from two servers, is byte for byte what the log has (P9)",
            [f.raw for f in anna.events] == stored,
        )
        self._check("the server shut down cleanly when asked to (P15)", self._server.stop() == 0)
        self._print("")
        self._print("All checks passed." if not self._failed_checks else f"{self._failed_checks} checks FAILED.")

    def _submit(self, run_id: str, session: int, prompt: str, on_busy: str = "queue") -> dict[str, Any]:
        return self._server.call(
            "accept", run_id=run_id, session_id=self._sessions[session], prompt=prompt, on_busy=on_busy
        )

    def _begin_section(self, title: str, *notes: str) -> None:
        self._section_count += 1
        self._print("")
        self._print(f"{self._section_count}. {title}")
        for note in notes:
            self._print_note(note)

    def _print_note(self, text: str) -> None:
        self._print(f"   {text}")

    def _check(self, text: str, is_true: bool) -> None:
        self._failed_checks += not is_true
        self._print(f"   {'ok' if is_true else 'FAILED'}: {text}")


def is_run(run_id: str, state: str) -> Callable[[Frame], bool]:
    return lambda f: f.type == "run" and f.payload["run_id"] == run_id and f.payload["state"] == state


def find_events(reader: Reader, run_id: str) -> list[Frame]:
    return [f for f in reader.events if f.payload.get("run_id") == run_id]


def find_finish_reason(frame: Frame) -> str | None:
    return next((part["reason"] for part in frame.payload["parts"] if part["type"] == "finish"), None)


SESSION_TITLES = [("parser", "docs"), ("login", "billing"), ("search", "mailer"), ("cache", "reports")]
LOOKS = [
    "Let me look at how this works today before I touch anything.",
    "I read the code around it first, and then I change one thing.",
    "First I find every place that calls it, so that none is forgotten.",
]
HITS = ["3 matches in 2 files", "7 matches in 4 files", "1 match in 1 file"]
FINDS = ["The bug is an off-by-one at the end of the line.", "Nobody closes the file when reading fails."]
EXTRAS = ["I keep the old name working as well.", "I add a test that fails without the change."]
TOOLS = ["deploy", "publish", "migrate"]
BUILDS = ["compiling 214 files with four workers and all warnings", "linking the release build for three platforms now"]
PLANS = ["The plan has three small steps.", "I split this into two commits."]
SPEECHES = [
    "The change is small but it touches every caller, so I go through them one by one and run the tests after each.",
    "What makes this slow is that the whole file is read again for each line, easy to see once it is measured.",
    "The old format stays readable, the new one is written from now on, and a test opens a file of each kind.",
]
LASTS = ["All of it is green.", "Nothing else uses it.", "The docs say so too."]


class Script(NamedTuple):
    sessions: tuple[str, str]
    look: str
    hits: str
    find: str
    extra: str
    tool: str
    action: Literal["allow", "deny"]
    build: str
    plan: str
    speech: str
    lasts: tuple[str, str]
    steer_after: int  # words of `look` that are written before r2 steers
    cancel_after: int  # words of `build`
    crash_after: int  # words of `speech`


def make_script(seed: int) -> Script:
    rng = random.Random(seed)
    look, build, speech = rng.choice(LOOKS), rng.choice(BUILDS), rng.choice(SPEECHES)
    first, second = rng.sample(LASTS, 2)
    return Script(
        sessions=rng.choice(SESSION_TITLES),
        look=look,
        hits=rng.choice(HITS),
        find=rng.choice(FINDS),
        extra=rng.choice(EXTRAS),
        tool=rng.choice(TOOLS),
        action=rng.choice(("allow", "deny")),
        build=build,
        plan=rng.choice(PLANS),
        speech=speech,
        lasts=(first, second),
        steer_after=rng.randint(2, count_words(look) - 2),
        cancel_after=rng.randint(2, count_words(build) - 2),
        crash_after=rng.randint(5, count_words(speech) - 3),
    )


def count_words(text: str) -> int:
    return len(text.split(" "))


def first_words(text: str, count: int) -> str:
    return " ".join(text.split(" ")[:count])
