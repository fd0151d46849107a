"""The interface without a server, with fixed content: for snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Input

from kedge.client import AsyncClient
from kedge.protocol.api import LoginProvider, Offered, OfferedModel, OfferedProvider
from kedge.protocol.events import FileChange
from kedge.protocol.files import SessionFile, SessionFiles
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.protocol.runs import Run, Usage
from kedge.protocol.sessions import Job, JobOutput, Session
from kedge.tui import app as app_module
from kedge.tui import formats, panels
from kedge.tui.api import Api
from kedge.tui.app import KedgeApp
from kedge.tui.settings import Launch
from kedge.tui.state.blocks import Block, PromptBlock, TextBlock
from kedge.tui.state.session import SessionState
from tests.tui.chat.support import DIFF, EDIT, END, call
from tests.tui.snapshots import picture

SESSION = "s1"
ANSWER = """The anchor held in **mud** and dragged on **rock**, because `drop` took the depth for the rope.

```python
def drop(depth: float) -> float:
    return depth * SCOPE  # seven times the depth
```

1. `SCOPE` is a constant now, with a word on why it is 7
2. the test of `drop` uses it
"""
CHAT: list[Block] = [
    PromptBlock(key="p", text="Why does the anchor drag? Mend it."),
    TextBlock(key="w1", text="I look at how the rope is measured."),
    call("grep", '{"pattern": "depth", "path": "src"}', output="src/anchor.py:10\nsrc/anchor.py:11"),
    EDIT,
    call("bash", '{"command": "pytest -q tests/test_anchor.py"}', output="4 passed in 0.12s", key="b"),
    TextBlock(key="w2", text=ANSWER),
    END,
]
TODOS = [("completed", "measure the rope"), ("in_progress", "test the scope"), ("pending", "write it down")]


def stored_session(session_id: str = SESSION, title: str = "Why the anchor drags") -> Session:
    three_days_ago = time.time() - 3.5 * 24 * 3600  # shown as an age, which must not change from day to day
    return Session(id=session_id, title=title, created_at=0.0, updated_at=three_days_ago)


def run(run_id: str, prompt: str, state: Any = "queued") -> Run:
    return Run(
        run_id=run_id,
        session_id=SESSION,
        kind="prompt",
        state=state,
        prompt=prompt,
        on_busy="queue",
        permissions="ask",
        model=None,
        attempt=1,
        cancel_requested=False,
        seq=int(run_id),
    )


def _request(tool: str, description: str, /, **params: Any) -> PermissionRequest:
    return PermissionRequest(
        id="q", session_id=SESSION, run_id="1", tool_call_id="c", tool=tool, action=tool, description=description,
        params=params,
    )  # fmt: skip


EDITING = _request(
    "edit",
    "edit src/anchor.py",
    path="src/anchor.py",
    diff=DIFF,
    notes=["changes src/anchor.py, outside the workspace"],
    rules=["edit(/srv/quay/src/anchor.py)"],
    always_rules=["edit(/srv/quay/src/anchor.py)"],
)
RUNNING = _request(
    "bash",
    "run git push --force-with-lease origin main && rm -rf build/ dist/ .cache/ && python -m build --wheel",
    description="publish the new version",
    command="git push --force-with-lease origin main && rm -rf build/ dist/ .cache/ && python -m build --wheel",
    working_dir=".",
    notes=["`git push --force-with-lease origin main` may change files"],
    rules=[],
    always_rules=[],
)
LONG = _request(
    "bash",
    "run a long script",
    command="\n".join(f"echo {number}" for number in range(80)),
    notes=["`echo 0` may change files"],
    rules=["bash(echo *)"],
    always_rules=["bash(echo *)"],
)
QUESTIONS = QuestionRequest(
    id="q",
    session_id=SESSION,
    run_id="1",
    tool_call_id="c",
    questions=[
        {"question": "Shall the old rope stay?", "kind": "yes_no"},
        {"question": "Which ground?", "kind": "one", "options": ["mud", "sand", "rock"]},
        {"question": "Which anchors?", "kind": "many", "options": ["kedge", "plough"]},
        {"question": "Anything else?", "kind": "text"},
    ],
)


def model(name: str, window: int, price: float | None = None) -> OfferedModel:
    return OfferedModel(
        name=name, context_window=window, max_output_tokens=None, input_price=price,
        output_price=None if price is None else price * 5, cache_read_price=None, cache_write_price=None,
        images=price is not None, tools=True, reasoning=price is not None, efforts=[], source="catalog", roles=[],
    )  # fmt: skip


OFFERED = Offered(
    model="harbour/large",
    small_model=None,
    why="harbour: HARBOUR_API_KEY is set",
    catalog_date="2026-01-01",
    providers=[
        OfferedProvider(
            id="harbour", title="Harbour", usable=True, why="HARBOUR_API_KEY is set",
            models=[model("harbour/large", 200_000, 3.0), model("harbour/small", 128_000, 0.25)],
        ),
        OfferedProvider(
            id="ollama", title="Ollama", usable=True, why="answers at 127.0.0.1:11434",
            models=[model("ollama/some-model-with-a-long-name:30b-instruct-q4_K_M", 32_768)],
        ),
        OfferedProvider(
            id="lighthouse", title="Lighthouse", usable=False, models=[],
            why="no key; set LIGHTHOUSE_API_KEY, or run: kedge login lighthouse",
        ),
    ],
)  # fmt: skip
PROVIDER = LoginProvider(
    provider_id="harbour", title="Harbour", needs_key=True, key_variable="HARBOUR_API_KEY", url_variable="HARBOUR_URL"
)
FILES = SessionFiles(
    [
        SessionFile(path="src/anchor.py", status="modified", versions=1, added=3, removed=2, diff=DIFF),
        SessionFile(path="tests/test_anchor.py", status="created", versions=1, added=12, removed=0, diff=""),
    ],
    ["made by commands, and so not seen: build/"],
)


class OfflineApi(Api):
    """Answers what pictures show."""

    async def call(self, method: str, path: str, body: object = None, *, type: type[Any]) -> Any:
        assert type is SessionFiles, path
        return FILES

    async def jobs(self) -> list[Job]:
        return [_job("j1", "python -m http.server 8000", None), _job("j2", "pytest -q --forked", 1)]

    async def wait_for_jobs(self, running: Iterable[str], wait_s: float) -> list[Job]:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def job_output(self, job_id: str, after: int | None, wait_s: float) -> JobOutput:
        if after is not None:
            await asyncio.Event().wait()
        text = "Serving HTTP on 127.0.0.1 port 8000\n127.0.0.1 - - GET /anchor.html 200\n"
        return JobOutput((await self.jobs())[0], text, len(text))


def _job(job_id: str, command: str, exit_code: int | None) -> Job:
    return Job(
        id=job_id, command=command, description="", session_id=SESSION, run_id="1",
        state="running" if exit_code is None else "ended", exit_code=exit_code, started_at=0.0, output_file="",
    )  # fmt: skip


class OfflineApp(KedgeApp):
    CSS_PATH = Path(app_module.__file__).with_name("kedge.tcss")

    async def _connect(self) -> AsyncClient:
        await asyncio.Event().wait()
        raise AssertionError("never")

    @property
    def session(self) -> SessionState:
        """The session that is shown, with a chat in it."""
        session = self.workspace.open_session(SESSION)
        self.workspace.sessions[SESSION] = stored_session()
        self.chat.session_id = SESSION
        session.blocks = list(CHAT)
        session.usage = Usage(48_200, 3_900, cost=0.21)
        session.files = {"src/anchor.py": FileChange(SESSION, "1", "src/anchor.py", 1, 3, 2)}
        return session


def _twelve(_: float) -> str:
    return "12 s"


@contextlib.asynccontextmanager
async def open_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], theme: str = "kedge-dark"
) -> AsyncGenerator[tuple[OfflineApp, Pilot[int]]]:
    monkeypatch.setattr(formats, "format_duration", _twelve)
    monkeypatch.setattr(panels, "_SPINNER", "⠹")
    monkeypatch.setattr(panels, "VERSION", "1.0")
    monkeypatch.setattr(SessionState, "todos", TODOS)
    monkeypatch.setattr(SessionState, "context_tokens", 61_000)
    app = OfflineApp(Launch(directory="/srv/harbour", data_dir=str(tmp_path)))
    async with app.run_test(size=size, notifications=True) as pilot:
        app.theme = theme
        app.chat.model, app.chat.window = "harbour/large", 200_000
        app.chat.editor.cursor_blink = False
        app.chat.draw()
        await pilot.pause()
        yield app, pilot


async def show(app: OfflineApp, pilot: Pilot[int], dialog: ModalScreen[Any] | None) -> None:
    """Drawn, with a dialog in front, and nothing that blinks."""
    app.chat.show_state()
    await pilot.pause()
    if dialog is not None:
        await app.push_screen(dialog)
        for field in dialog.query(Input):
            field.cursor_blink = False
    if (asked := app.chat.requests.permission) is not None:
        asked.focus()
    before, drawn = "", picture(app)
    while before != drawn:  # a dialog may fit itself to the screen in several steps
        await pilot.pause()
        before, drawn = drawn, picture(app)
