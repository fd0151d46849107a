"""`kedge run`: a prompt in, the answer out, and an exit code that scripts can rely on (section 5 of the contract)."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, connect, exit_code_of
from kedge.cli.console import CannotWrite, Console, Stopped, TimeUp, is_terminal, open_standard_streams
from kedge.cli.options import Options, UsageError
from kedge.cli.output import complain
from kedge.cli.run_input import join_prompt, read_stdin
from kedge.cli.run_options import HELP, as_text, differing, parse
from kedge.cli.run_printer import JsonPrinter, TextPrinter, exit_code_of_end, explanation_of_end, summary
from kedge.client.errors import ClientError, Refused
from kedge.client.http1 import escape
from kedge.client.reconnect import ReconnectPolicy
from kedge.client.run_follower import RunFollower, RunTracker
from kedge.client.run_view import RunView
from kedge.client.submission import caller_environment, make_submission
from kedge.client.sync_client import Client
from kedge.protocol.address import AddressError
from kedge.protocol.formats import provisional_title
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.cli.run_printer import Printer

EXIT_TIME_UP = 124
EXIT_PIPE_CLOSED = 141  # as if by SIGPIPE

CANCEL_S = 10.0  # the end of a cancelled run is written within 5 s (P6)


def run(argv: list[str]) -> int:
    open_standard_streams()
    try:
        options = parse(argv)
        if options.has("help"):
            print(HELP, end="")
            return EXIT_OK
        is_moving = is_terminal(2) and not options.has("quiet") and os.environ.get("TERM", "dumb") != "dumb"
        console = Console(has_spinner=is_moving, timeout_s=options.seconds("timeout"))
    except UsageError as error:
        return complain(f"{error}; 'kedge run --help' explains", EXIT_USAGE)
    try:
        return Command(options, console).go()
    except (UsageError, AddressError, ClientError) as error:
        code, why = exit_code_of(error), str(error)
    except TimeUp:
        code, why = EXIT_TIME_UP, f"not done after {options.get('timeout')} s"
    except Stopped as stop:
        console.hide()
        return 128 + stop.signum
    except BrokenPipeError:
        # Whoever reads has seen enough. The run goes on (P4).
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        console.hide()
        return EXIT_PIPE_CLOSED
    except CannotWrite as error:
        code, why = EXIT_FAILED, str(error)
    console.hide()
    return complain(why, code)


class Command:
    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._is_quiet = options.has("quiet")
        self._made_session: str | None = None
        self._is_accepted = False
        self._attachments: list[dict[str, str]] = []

    def go(self) -> int:
        if files := self._options.all("file"):
            from kedge.cli.run_input import attachments

            self._attachments = attachments(files)
        given = differing(self._options)
        prompt = self._prompt()
        client = self._connect()
        body = make_submission(
            prompt, self._session_id(client, prompt), self._options.get("run-id"), self._fields(given)
        )
        try:
            return self._detach(client, body) if self._options.has("detach") else self._follow(client, body)
        except Refused:
            if self._made_session and not self._is_accepted:
                # A refused submit leaves no trace (P3).
                client.call("DELETE", f"/sessions/{escape(self._made_session)}")
            raise

    def _detach(self, client: Client, body: dict[str, Any]) -> int:
        self._console.may_stop = False
        client.transport.call("POST", f"{client.path}/agent", body, policy=client.new_policy())
        self._is_accepted = True
        self._console.answer(f"{body['run_id']}\n")
        self._console.flush()
        return EXIT_OK

    def _prompt(self) -> str:
        words = self._options.words
        insists = "-" in words
        prompt = as_text(" ".join(word for word in words if word != "-"))
        given = ""
        if not self._options.has("no-stdin") or insists:
            self._console.say("reading standard input")
            given = read_stdin(self._console, insists=insists, has_prompt=bool(prompt.strip()), note=self._note)
        whole = join_prompt(prompt, given)
        if not whole.strip() and not any(a["mime_type"].startswith("text/") for a in self._attachments):
            raise UsageError("the prompt is empty; say what to do: kedge run PROMPT, or pipe it in")
        return whole

    def _connect(self) -> Client:
        self._console.say("connecting")
        return connect(self._options, name="kedge run", waiter=self._console)

    def _session_id(self, client: Client, prompt: str) -> str:
        if session_id := self._options.get("session"):
            return session_id
        if (run_id := self._options.get("run-id")) and (session_id := _session_of(client, run_id)):
            return session_id
        if self._options.has("continue") and (session := client.latest_session()) is not None:
            return session["id"]
        made: str = client.create_session(provisional_title(prompt))["id"]
        self._made_session = made
        return made

    def _fields(self, given: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "permissions": "allow" if self._options.has("yes") else "deny",
            "env": caller_environment(),
        }
        if model := self._options.get("model") or os.environ.get("KEDGE_MODEL"):
            fields["model"] = as_text(model)
        if on_busy := self._options.get("on-busy"):
            fields["on_busy"] = on_busy
        if self._attachments:
            fields["attachments"] = self._attachments
        if given:
            fields["options"] = given
        return fields

    def _follow(self, client: Client, body: dict[str, Any]) -> int:
        follower = _Follower(self._console, client, body)
        view = follower.tracker.view
        printer = self._printer(view)
        follower.tracker.listen = printer.listen
        self._console.say("sending")
        for _ in follower.steps():
            self._is_accepted = follower.tracker.receipt is not None
            self._console.say(view.status)
            printer.print_new()
            self._console.flush()
            follower.heed()
        assert view.end is not None
        printer.finish(view.end)
        self._console.finish()
        return self._conclude(follower, view.end)

    def _printer(self, view: RunView) -> Printer:
        is_asked = self._options.has("stream")
        if self._options.has("json"):
            return JsonPrinter(self._console, with_deltas=is_asked)
        is_live = is_asked or (is_terminal(1) and not self._options.has("no-stream"))
        return TextPrinter(self._console, view, is_live=is_live, is_quiet=self._is_quiet, shows_calls=is_terminal(2))

    def _conclude(self, follower: _Follower, end: dict[str, Any]) -> int:
        refused = follower.tracker.view.requests.denied
        code = exit_code_of_end(end, refused)
        if (line := explanation_of_end(end, refused, with_options=True)) is not None:
            self._note(line)
        if end.get("cancelled") and follower.is_time_up:
            code = EXIT_TIME_UP
            self._note(f"not done after {self._options.get('timeout')} s; the run was cancelled")
        elif end.get("cancelled") and self._console.signum is not None:
            code = 128 + self._console.signum
        if not self._is_quiet and (line := summary(self._console.elapsed_s, end.get("usage", {}))):
            self._note(line)
        return code

    def _note(self, line: str) -> None:
        self._console.error(f"kedge: {visible_line(line)}\n")  # an error has words of the provider's


class NotCancelled(ClientError):
    pass


class _Follower(RunFollower):
    """Heeds signals and the deadline: from the moment it is sent, they cancel the run."""

    def __init__(self, console: Console, client: Client, body: dict[str, Any]) -> None:
        super().__init__(client.transport, RunTracker(client.path, body), client.new_policy())
        self._console = console
        self._client = client
        self.is_time_up = False
        self._is_cancelled = False

    def submit(self) -> None:
        self._console.may_stop = False
        try:
            super().submit()
        except TimeUp:
            self._give_up()
            raise
        self._console.may_time_out = False

    def heed(self) -> None:
        """Cancel the run if it is time for that."""
        if self.tracker.receipt is None or self.tracker.view.end is not None or self._is_cancelled:
            return
        if self._console.signum is not None:
            self._is_cancelled = self._console.is_heard = True
            try:
                self.cancel(self._client.new_policy())
            except Refused as error:
                run_id = self.tracker.view.run_id
                raise NotCancelled(f"the cancel was refused ({error}); run {run_id} goes on") from error
        elif self._console.is_time_up:
            self._is_cancelled = self.is_time_up = True
            self._give_up()

    def _give_up(self) -> None:
        """Cancel, and wait only a little for the end: our time is over."""
        self._console.may_time_out = False
        self._client.transport.timeout_s = CANCEL_S
        try:
            self.cancel(ReconnectPolicy(give_up_s=CANCEL_S))
        except ClientError as error:
            raise TimeUp from error
        self._console.extend(CANCEL_S)


def _session_of(client: Client, run_id: str) -> str | None:
    """Of a run that is there already: sent again, it is the same run only in the session that it got (P3)."""
    try:
        return client.call("GET", f"/runs/{escape(run_id)}")["session_id"]
    except Refused as error:
        if error.code != "run_not_found":
            raise
    return None
