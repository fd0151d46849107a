"""Kedge as its users have it: the real server and the real agent. Only the model at the far end is a scripted one."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from kedge.protocol.events import Event
from kedge.protocol.runs import Run
from tests.client.command import Kedge
from tests.server.client import Client as Plain
from tests.server.process import Place, Server
from tests.support.model_control import ModelControl
from tests.support.model_plan import Plan
from tests.support.model_server import HOST


class Home(Place):
    """A place whose shells know the scripted model, and no other."""

    def __init__(self, directory: Path, models: ModelControl, *, has_titles: bool = True) -> None:
        super().__init__(directory)
        self._has_titles = has_titles
        self.directory = directory
        self.models = models

    @property
    def env(self) -> dict[str, str]:
        return {
            **super().env,
            "OPENAI_BASE_URL": self.models.base_url,
            "OPENAI_API_KEY": "key-for-tests",
            "KEDGE_MODEL": "openai/fake-model",
            # A module that is edited twice in a second keeps its size and its time: Python would run the old one.
            "PYTHONDONTWRITEBYTECODE": "1",
            "KEDGE_AGENT__TITLES": str(self._has_titles).lower(),
            "KEDGE_AGENT__LANGUAGE_SERVERS": "false",  # whichever are installed here
            "NO_PROXY": HOST,  # whatever proxy the machine uses, it cannot reach our loopback
        }

    def serve(self, *args: str, module: str = "kedge") -> Server:
        return Server(self, self.popen("serve", *args, module=module))


@contextlib.contextmanager
def new_home(models: ModelControl, *, has_titles: bool = True) -> Generator[Home]:
    """Nobody lives here yet; whoever does at the end is asked to leave."""
    # Not pytest's directory: the path of a Unix socket may have about a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="kedge-t-"))
    home = Home(directory, models, has_titles=has_titles)
    try:
        yield home
    finally:
        Kedge(home, directory).end_server()
        shutil.rmtree(directory, ignore_errors=True)  # a process that was killed may still write its last file


def asking(**plan: object) -> str:
    """A prompt that the model answers by this plan (`tests.support.model_plan`)."""
    Plan().changed(plan)  # says what is wrong with it here, and not in the model server
    return f"[[fake {' '.join(f'{name}={shlex.quote(str(value))}' for name, value in plan.items())}]]"


def answer_of(**plan: object) -> str:
    return "".join(Plan().changed(plan).pieces())


def is_accepted(run_id: str) -> Callable[[Event], bool]:
    """Whether an event is the first of that run."""
    return lambda event: isinstance(event.payload, Run) and event.payload.run_id == run_id


def log_of(client: Plain, workspace: str) -> list[Event]:
    """The whole log, as a client hears it that comes too late for everything."""
    with client.events(workspace, after=0) as events:
        return [event for event in events.until("caught_up") if event.seq is not None]
