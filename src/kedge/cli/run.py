"""`kedge run`: a prompt in, the answer out, and an exit code for scripts (section 5 of the contract)."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_FAILED, EXIT_OK, connect, exit_code_of, get_run, print_usage_error
from kedge.cli.console import CannotWrite, Console, Phase, Stopped, TimeUp, open_standard_streams
from kedge.cli.options import Options, UsageError
from kedge.cli.output import note_line, print_error
from kedge.cli.run_input import join_prompt, read_stdin
from kedge.cli.run_options import HELP, as_text, parse, run_overrides
from kedge.cli.run_printer import exit_code_of_end, explain_end, make_printer, summarize_usage
from kedge.client.environment import caller_environment, make_submission
from kedge.client.errors import ClientError, Refused
from kedge.client.reconnect import ReconnectPolicy
from kedge.client.run_follower import RunFollower, RunTracker
from kedge.client.sync_client import Client
from kedge.http.http1 import escape
from kedge.protocol.address import AddressError
from kedge.protocol.text_safety import provisional_title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

EXIT_TIME_UP = 124
EXIT_PIPE_CLOSED = 141  # as if by SIGPIPE

CANCEL_S = 10.0  # the end of a canceled run is written within 5 s (P6)


def run(argv: list[str]) -> int:
    open_standard_streams()
    try:
        options = parse(argv)
        if options.has("help"):
            print(HELP, end="")
            return EXIT_OK
        has_spinner = os.isatty(2) and not options.has("quiet") and os.environ.get("TERM", "dumb") != "dumb"
        console = Console(has_spinner=has_spinner, timeout_s=options.seconds("timeout"))
    except UsageError as error:
        return print_usage_error(error, "kedge run")
    try:
        return RunCommand(options, console).run()
    except UsageError as error:
        console.hide_spinner()
        return print_usage_error(error, "kedge run")
    except (AddressError, ClientError) as error:
        code, message = exit_code_of(error), str(error)
    except TimeUp:
        code, message = EXIT_TIME_UP, f"Timed out after {options.get('timeout')} s"
    except Stopped as stop:
        console.hide_spinner()
        return 128 + stop.signum
    except BrokenPipeError:
        # The reader has closed the pipe. The run continues (P4).
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        console.hide_spinner()
        return EXIT_PIPE_CLOSED
    except CannotWrite as error:
        code, message = EXIT_FAILED, str(error)
    console.hide_spinner()
    return print_error(message, code)


class RunCommand:
    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._is_quiet = options.has("quiet")
        self._new_session_id: str | None = None
        self._is_accepted = False
        self._attachments: list[dict[str, str]] = []

    def run(self) -> int:
        if paths := self._options.all("file"):
            from kedge.cli.run_input import read_attachments

            self._attachments = read_attachments(paths)
        overrides = run_overrides(self._options)
        prompt = self._read_prompt()
        if overrides.get("mode") == "plan" and self._options.has("yolo") and not self._is_quiet:
            self._note("Mode plan changes nothing, so -y has no effect")
        self._console.show_status("connecting")
        client = connect(self._options, name="kedge run", waiter=self._console, write_error=self._console.write_error)
        session_id = self._find_session(client, prompt)
        submission = make_submission(prompt, session_id, self._options.get("run-id"), self._fields(overrides))
        try:
            return self._detach(client, submission) if self._options.has("detach") else self._follow(client, submission)
        except Refused:
            if self._new_session_id and not self._is_accepted:
                # A refused submission leaves no trace (P3).
                client.call("DELETE", f"/sessions/{escape(self._new_session_id)}")
            raise

    def _detach(self, client: Client, submission: dict[str, Any]) -> int:
        self._console.phase = Phase.SENDING
        client.call("POST", "/agent", submission)
        self._is_accepted = True
        self._console.write(f"{submission['run_id']}\n")
        self._console.finish()
        return EXIT_OK

    def _read_prompt(self) -> str:
        words = self._options.words
        insists = "-" in words
        prompt = as_text(" ".join(word for word in words if word != "-"))
        piped = ""
        if not self._options.has("no-stdin") or insists:
            self._console.show_status("reading standard input")
            piped = read_stdin(self._console, insists=insists, has_prompt=bool(prompt.strip()), note=self._note)
        prompt = join_prompt(prompt, piped)
        if not prompt.strip() and not any(a["mime_type"].startswith("text/") for a in self._attachments):
            raise UsageError("The prompt is empty. Pass one (kedge run PROMPT), or pipe it in")
        return prompt

    def _find_session(self, client: Client, prompt: str) -> str:
        """The session that was named or used last, or a new one."""
        if session_id := self._options.get("session"):
            return session_id
        if (run_id := self._options.get("run-id")) and (run := get_run(client, run_id)):
            return run["session_id"]  # sent again, it is the same run only in that session (P3)
        if self._options.has("continue") and (session := client.latest_session()) is not None:
            return session["id"]
        new_id: str = client.create_session(provisional_title(prompt))["id"]
        self._new_session_id = new_id
        return new_id

    def _fields(self, overrides: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "permissions": "allow" if self._options.has("yolo") else "deny",
            "env": caller_environment(),
        }
        if model := self._options.get("model") or os.environ.get("KEDGE_MODEL"):
            fields["model"] = as_text(model)
        if on_busy := self._options.get("on-busy"):
            fields["on_busy"] = on_busy
        if self._attachments:
            fields["attachments"] = self._attachments
        if overrides:
            fields["options"] = overrides
        return fields

    def _follow(self, client: Client, submission: dict[str, Any]) -> int:
        follower = InterruptibleFollower(self._console, client, submission)
        view = follower.tracker.view
        printer = make_printer(self._options, self._console, view)
        follower.tracker.listen = printer.take_event
        self._console.show_status("sending")
        for _ in follower.steps():
            self._is_accepted = follower.tracker.receipt is not None
            self._console.show_status(view.status)
            printer.print_new()
            self._console.flush()
            follower.cancel_if_due()
        assert view.end is not None
        printer.finish(view.end)
        self._console.finish()
        return self._print_end(follower, view.end)

    def _print_end(self, follower: InterruptibleFollower, end: dict[str, Any]) -> int:
        """Print the last lines on standard error; returns the exit code."""
        denied = follower.tracker.view.requests.denied
        code = exit_code_of_end(end, denied)
        if (line := explain_end(end, denied)) is not None:
            self._note(line)
        if end.get("cancelled") and follower.cancelled_by == "deadline":
            code = EXIT_TIME_UP
            self._note(f"Timed out after {self._options.get('timeout')} s. The run was canceled.")
        elif end.get("cancelled"):
            code = code if self._console.signum is None else 128 + self._console.signum
            if os.isatty(2) and not self._is_quiet:
                self._note("Canceled" if follower.cancelled_by else "Canceled by another client")
        if not self._is_quiet:
            used = summarize_usage(self._console.elapsed_s, end.get("usage", {}))
            self._note(f"{used}, session {end['session_id']}" if used else f"Session {end['session_id']}")
        return code

    def _note(self, line: str) -> None:
        self._console.write_error(f"{note_line(line)}\n")


class NotCancelled(ClientError):
    pass


class InterruptibleFollower(RunFollower):
    """Cancels the run on a signal or at the deadline, from the moment it is submitted."""

    def __init__(self, console: Console, client: Client, submission: dict[str, Any]) -> None:
        super().__init__(client.transport, RunTracker(client.path, submission), client.new_policy())
        self.cancelled_by: Literal["signal", "deadline"] | None = None
        self._console = console
        self._client = client

    def submit(self) -> None:
        self._console.phase = Phase.SENDING
        try:
            super().submit()
        except TimeUp:
            self._cancel_at_deadline()
            raise
        self._console.phase = Phase.FOLLOWING

    def cancel_if_due(self) -> None:
        if self.tracker.receipt is None or self.tracker.view.end is not None or self.cancelled_by is not None:
            return
        if self._console.signum is not None:
            self.cancelled_by = "signal"
            self._console.phase = Phase.CANCELLING
            try:
                self.cancel(self._client.new_policy())
            except Refused as error:
                run_id = self.tracker.view.run_id
                raise NotCancelled(f"The run could not be canceled ({error}). Run {run_id} continues.") from error
        elif self._console.is_time_up:
            self.cancelled_by = "deadline"
            self._cancel_at_deadline()

    def _cancel_at_deadline(self) -> None:
        """Cancel, and wait only a little for the end. Raises `TimeUp` if the server does not answer."""
        self._console.phase = Phase.CANCELLING
        self._client.transport.timeout_s = CANCEL_S
        try:
            self.cancel(ReconnectPolicy(give_up_s=CANCEL_S))
        except ClientError as error:
            raise TimeUp from error
        self._console.extend_deadline(CANCEL_S)
        self._console.phase = Phase.TIMING_OUT
