"""The context of tool calls: what the calls of a turn share, and what one call works with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    MutableMapping,
    MutableSet,
    Sequence,
)
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kedge.config.files import ConfigPaths
from kedge.config.schema import Config
from kedge.engine.errors import NotRecorded
from kedge.engine.message_writer import ToolWriter
from kedge.engine.turn import TurnContext
from kedge.files.safe_open import remove_tree
from kedge.files.states import compute_digest
from kedge.protocol.messages import Image, Message, ToolResult, replace_surrogates
from kedge.protocol.requests import Answer
from kedge.protocol.runs import RunOptions, Usage
from kedge.skills.definitions import AgentDefinition
from kedge.skills.library import Library
from kedge.tools.errors import ToolError
from kedge.tools.port import LanguageService, Output, RunAs, ToolScope
from kedge.tools.process.command import Jobs
from kedge.tools.process.output import SAVED_OUTPUT, OutputFile, cut_at_lines
from kedge.tools.process.spawn import Process
from kedge.tools.sandbox.sandbox import Sandbox

GENERAL_AGENT = frozenset({"general", "general-purpose", "default"})  # as models call the one without a name

SCRATCH_KEPT_S = 30 * 86_400  # as long as the event log

# Gives access to this server: not for programs that a model starts.
_HIDDEN_VARIABLES = frozenset({"KEDGE_TOKEN"})


FindSearchKey = Callable[[], Coroutine[Any, Any, str | None]]


async def _find_no_key() -> str | None:
    return None


class TurnScope:
    """Implements `kedge.tools.port.ToolScope` for one turn."""

    def __init__(
        self,
        ctx: TurnContext,
        *,
        env: Mapping[str, str],
        config: Config,
        data_dir: Path,
        jobs: Jobs,
        sees_images: bool,
    ) -> None:
        self.directory = ctx.directory
        self.env: Mapping[str, str] = {k: v for k, v in env.items() if k not in _HIDDEN_VARIABLES}
        self.config = config
        self.session_id = ctx.run.session_id
        self.run_id = ctx.run.run_id
        self.jobs = jobs
        self.sees_images = sees_images
        self.max_result_chars = MAX_CHARS  # less in the turn of a model
        self.known_files: MutableMapping[str, str] = {}
        self.unviewed_files: MutableSet[str] = set()
        self.shown_instructions: dict[str, str] = {}  # digests of context files by path, as the model last saw them
        self.scratch = scratch_directory(data_dir, self.session_id)  # created on first use
        self.approved_path = None  # it and the next are set for each call
        self.approved_paths: frozenset[Path] = frozenset()
        self.languages: LanguageService | None = None
        self.find_search_key: FindSearchKey = _find_no_key  # set in the turn of a model
        self.is_hidden: Callable[[str], bool] | None = None
        self.library = Library()
        self.sandbox = Sandbox(
            config=config.sandbox,
            directory=ctx.directory,
            scratch=self.scratch,
            private=(data_dir, ConfigPaths.from_env(env).user.parent),
            env=self.env,
        )

    def learn_files(self, metadata: Mapping[str, Any] | None) -> None:
        """Add the files that a result showed or wrote."""
        files = read_file_digests(metadata)
        self.known_files.update(files)
        unviewed = (metadata or {}).get("unviewed")
        for path in files:
            if isinstance(unviewed, list) and path in unviewed:
                self.unviewed_files.add(path)
            else:
                self.unviewed_files.discard(path)

    def learn_history(self, history: Sequence[Message]) -> None:
        """Set the files that the model has read or written, as it last saw them."""
        self.known_files.clear()
        self.unviewed_files.clear()
        for message in history:
            if message.role == "tool":
                for part in message.parts:
                    if isinstance(part, ToolResult):
                        self.learn_files(part.metadata)


class OutputWriter(Protocol):
    def write(self, text: str) -> None: ...


class NoWriter:
    """For a command whose output is shown only when it is complete."""

    def write(self, text: str) -> None:
        del text


class CallContext:
    """Implements `kedge.tools.port.ToolContext` for one call."""

    def __init__(
        self,
        ctx: TurnContext,
        scope: TurnScope,
        call_id: str,
        writer: OutputWriter,
        answer: Answer | None,
        message_id: str = "",
    ) -> None:
        self.call_id = call_id
        self.answer = answer
        self.directory = scope.directory
        self.env = scope.env
        self.config = scope.config
        self.session_id = scope.session_id
        self.run_id = scope.run_id
        self.sees_images = scope.sees_images
        self.max_result_chars = scope.max_result_chars
        self.known_files = scope.known_files
        self.unviewed_files = scope.unviewed_files
        self.jobs = scope.jobs
        self.scratch = scope.scratch
        self.is_hidden = scope.is_hidden
        self.sandbox = scope.sandbox
        self.library = scope.library
        self.commands: Mapping[str, Callable[[], Awaitable[str]]] = {}  # those that the call may run, by their line
        self.may_run_unsandboxed = False
        self.run_as: RunAs = "approved"
        self.readable_paths: tuple[str, ...] = ()
        self.approved_path: Path | None = None
        self.approved_paths: frozenset[Path] = frozenset()
        self.languages = scope.languages
        self._ctx = ctx
        self._message_id = message_id  # of the step
        self._writer = writer
        self._chars_left = MAX_SHOWN_CHARS
        self._find_search_key = scope.find_search_key

    def write(self, text: str) -> None:
        """Show output while the call runs, up to a limit; the result has the rest."""
        shown = text[: self._chars_left]
        self._chars_left -= len(shown)
        if shown:
            self._writer.write(shown)

    @property
    def is_attended(self) -> bool:
        return self._ctx.run.permissions == "ask"

    @property
    def is_stopping(self) -> bool:
        return self._ctx.is_stopping

    async def ask(self, questions: list[dict[str, Any]]) -> Answer:
        """Ask a person while the call runs. After a restart the same questions get the answer that was given."""
        return await self._ctx.ask_question(self._message_id, self.call_id, clean(questions))

    async def state(self) -> bytes | None:
        return await self._writer.state() if isinstance(self._writer, ToolWriter) else None

    async def keep_state(self, state: bytes | None) -> None:
        if isinstance(self._writer, ToolWriter):
            await self._writer.keep_state(state)

    async def record_process(self, pid: int) -> Process:
        return await self._ctx.record_process(pid)

    @contextlib.asynccontextmanager
    async def record_change(
        self, path: Path, data: bytes | None = None, counts: tuple[int, int] | None = None
    ) -> AsyncGenerator[None]:
        try:
            async with self._ctx.record_change(path, data, counts):
                yield
        except NotRecorded as error:
            raise ToolError(f"Nothing was written: what was there before could not be kept ({error}).") from error

    async def find_search_key(self) -> str | None:
        return await self._find_search_key()

    async def add_cost(self, dollars: float) -> None:
        await self._ctx.add_usage(Usage(cost=dollars))

    async def run_command(self, line: str) -> str:
        run = self.commands.get(line)
        return f"[Not run: {line}: the text has changed meanwhile]" if run is None else await run()

    async def delegate(self, prompt: str, title: str, agent: str = "") -> str:
        own = self._ctx.options
        options = RunOptions(
            max_cost=await self._remaining_cost(),
            mode=own.mode,
            allow=own.allow,
            deny=own.deny,
            effort=self._ctx.effort,
        )
        model = self._ctx.model
        if agent and (agent in self.library.agents or agent not in GENERAL_AGENT):
            from kedge.skills.tool_names import is_writer, list_agent_tools

            definition = self._find_agent(agent)
            may_write = is_writer(definition, self.config.agent.writers)
            options = msgspec.structs.replace(
                options,
                system=definition.prompt,
                tools=tuple(list_agent_tools(definition, may_write=may_write)),
                max_steps=definition.max_steps,
            )
            # A name without a provider is that of another agent's catalog, such as "sonnet" or "inherit".
            model = definition.model if "/" in definition.model else model
        end = await self._ctx.delegate(prompt, title=title, model=model, options=options)
        if end.cancelled:
            raise ToolError("The sub-agent was cancelled before it finished.")
        if end.error is not None:
            raise ToolError(f"The sub-agent failed: {end.error}")
        if not end.text.strip():
            raise ToolError("The sub-agent ended without an answer;", "ask again, with a narrower question.")
        return end.text

    def _find_agent(self, name: str) -> AgentDefinition:
        definition = self.library.agents.get(name)
        if definition is None:
            known = ", ".join(self.library.agents) or "only the general one, without a name"
            raise ToolError(f"There is no sub-agent {name[:100]!r}.", f"There are: {known}.")
        return definition

    async def _remaining_cost(self) -> float | None:
        """Return how much a sub-agent may spend: what its parent has left. None: no limit."""
        max_cost = self._ctx.options.max_cost or self.config.agent.max_cost
        if max_cost is None:
            return None
        left = max_cost - (await self._ctx.usage()).cost
        if left <= 0:
            raise ToolError("The limit on this run's cost is reached: nothing is left for a sub-agent.")
        return left


def scratch_directory(data_dir: Path, session_id: str) -> Path:
    return data_dir / "scratch" / session_id


def remove_scratch(data_dir: Path, session_id: str) -> None:
    remove_tree(scratch_directory(data_dir, session_id))


def remove_old_scratch(data_dir: Path) -> None:
    """Remove old directories, including those of deleted sessions that could not be removed at the time."""
    oldest = time.time() - SCRATCH_KEPT_S
    for directory in (data_dir / "scratch").glob("*"):
        try:
            if directory.stat().st_mtime < oldest:
                remove_tree(directory)
        except OSError:
            continue  # removed meanwhile


# Of a result, however large the context window is.
MAX_CHARS = 256 * 1024
MARK_CHARS = 300  # room for the note where a result is cut
MAX_SHOWN_CHARS = 1024 * 1024  # of output shown while a call runs
MAX_IMAGES = 8
IMAGE_CHARS = 4_000  # an image takes as much of the context as so much text
MAX_IMAGE_BYTES = 5 * 1024 * 1024  # the limit of providers
MAX_METADATA_BYTES = 1024 * 1024  # metadata is shown by clients, such as a diff


def limit_output(output: Output, scope: ToolScope) -> Output:
    """Return a result of bounded size (P17), in valid Unicode and never empty. Writes a long one to a file. Blocks."""
    notes: list[str] = []
    images: list[Image] = []
    max_images = min(MAX_IMAGES, max(1, scope.max_result_chars // IMAGE_CHARS))
    for image in output.images:
        if len(images) == max_images or len(image.data) > MAX_IMAGE_BYTES:
            notes.append(f"[An image of {len(image.data)} bytes is left out: it is too large, or one too many.]")
        else:
            images.append(image)
    content = "\n".join([_cut(replace_surrogates(output.content), scope), *notes])
    if not content and not output.advice:
        content = "(no output)"
    metadata = _limit_metadata(output.metadata)
    return msgspec.structs.replace(output, content=content, metadata=metadata, images=images)


def read_file_digests(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    match metadata:
        case {"files": {**files}}:
            return {str(path): digest for path, digest in files.items() if isinstance(digest, str)}
        case _:
            return {}


def clean(value: Any) -> Any:
    """Return a JSON value whose strings are valid Unicode."""
    match value:
        case str():
            return replace_surrogates(value)
        case {**fields}:
            return {clean(name): clean(each) for name, each in fields.items()}
        case [*items]:
            return [clean(item) for item in items]
        case _:
            return value


def _limit_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    if metadata is None:
        return None
    metadata = clean(metadata)
    if len(msgspec.json.encode(metadata)) <= MAX_METADATA_BYTES:
        return metadata
    return {"files": files} if (files := read_file_digests(metadata)) else None  # small, and needed to edit safely


def _cut(content: str, scope: ToolScope) -> str:
    """Return the beginning and the end of a long text, in whole lines, and where the rest is."""
    if len(content) <= scope.max_result_chars:
        return content
    saved = SAVED_OUTPUT.search(content)
    if saved is not None and Path(saved[1]).parent == scope.scratch:
        where = f"All of the output is in {saved[1]}: use view with an offset, or grep."
    else:
        # The same result has the same name: it must be recognized when it repeats.
        file = OutputFile(scope.scratch, compute_digest(content.encode())[:8])
        if not file.path.exists():
            file.write(content)
            file.spill()
            file.close()
        where = file.where
    half = max(scope.max_result_chars - MARK_CHARS, 0) // 2
    head, tail = cut_at_lines(content, half, half)
    cut = len(content) - len(head) - len(tail)
    return f"{head}\n[… {cut:,} characters are left out here: the result is too long. {where} …]\n\n{tail}"
