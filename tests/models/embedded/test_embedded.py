"""The model inside, for real: it answers, is shared, stops when nobody listens, and its death is only an attempt's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import stat
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from kedge.models.client import ModelClient
from kedge.models.embedded.models import EmbeddedModels
from kedge.models.errors import ConfigError, Transient
from kedge.models.values import Delta, Endpoint, StepEnd, StepRequest, TextDelta, UsageReport
from kedge.protocol.messages import Message, Text
from tests.models.embedded import cache
from tests.support.processes import is_alive

TINY = Path(__file__).parents[3] / "src/kedge/agent/prompts/tiny.md"
LONG = "Write a long story about the sea, the ships on it, and the people in them. Do not stop."
LIMIT_S = 50.0


async def tell(sentence: str, details: dict[str, Any]) -> None:
    assert sentence.startswith("Loading local/"), f"the starter is there, and yet: {sentence}"
    assert details == {"is_passing": True}


def ask(prompt: str) -> StepRequest:
    message = Message(
        id="m",
        session_id="s",
        run_id="r",
        role="user",
        parts=[Text(prompt)],
        model=None,
        created_at=0.0,
    )
    return StepRequest(system=TINY.read_text(), history=[message])


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


@contextlib.asynccontextmanager
async def streaming(
    models: ModelClient, endpoint: Endpoint, prompt: str
) -> AsyncGenerator[AsyncGenerator[list[Delta]]]:
    async with asyncio.timeout(LIMIT_S), contextlib.aclosing(models.stream(endpoint, ask(prompt))) as groups:
        yield groups


async def answer(models: ModelClient, endpoint: Endpoint, prompt: str) -> list[Delta]:
    async with streaming(models, endpoint, prompt) as groups:
        return [delta async for group in groups for delta in group]


async def first_words(groups: AsyncGenerator[list[Delta]]) -> str:
    async for group in groups:
        if said := text_of(group):
            return said
    raise AssertionError("it said nothing")


@pytest.fixture
async def starter(embedded: EmbeddedModels, tmp_path: Path) -> Endpoint:
    return await embedded.load("starter", directory=tmp_path, env={}, report=tell)


def pid_of(embedded: EmbeddedModels) -> int:
    (child,) = embedded.children
    assert child.pid is not None
    return child.pid


async def test_it_says_that_two_and_two_is_four(models: ModelClient, starter: Endpoint) -> None:
    deltas = await answer(models, starter, "What is 2+2?")
    assert re.search(r"\b(4|four)\b", text_of(deltas)), text_of(deltas)
    assert [delta.reason for delta in deltas if isinstance(delta, StepEnd)] == ["end_turn"]
    (usage,) = (delta for delta in deltas if isinstance(delta, UsageReport))
    assert usage.output_tokens
    assert starter.name == "local/starter"


async def test_it_is_honest_about_what_it_can_do(starter: Endpoint) -> None:
    assert starter.info.is_tiny
    assert not starter.info.tools
    assert not starter.info.images
    assert starter.info.context_window == 4096
    assert starter.info.output_price == 0.0


async def test_words_are_shown_as_they_come(models: ModelClient, starter: Endpoint) -> None:
    async with streaming(models, starter, LONG) as groups:
        said = [await first_words(groups) for _ in range(5)]
    assert all(len(word) < 100 for word in said)


async def test_an_answer_that_nobody_wants_any_more_is_not_written(
    models: ModelClient, embedded: EmbeddedModels, starter: Endpoint
) -> None:
    async with streaming(models, starter, LONG) as groups:
        await first_words(groups)
        began = cpu_s(pid_of(embedded))
        await first_words(groups)
    async with asyncio.timeout(10):
        while not await is_idle(pid_of(embedded)):
            pass
    # A story of that length takes it seconds.
    assert cpu_s(pid_of(embedded)) - began < 1.0


async def test_it_can_be_cancelled_before_its_first_word(
    models: ModelClient, embedded: EmbeddedModels, starter: Endpoint
) -> None:
    task = asyncio.create_task(answer(models, starter, "long " * 3000))
    async with asyncio.timeout(LIMIT_S):
        while await is_idle(pid_of(embedded)):  # reading takes it a while
            pass
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    async with asyncio.timeout(10):
        while not await is_idle(pid_of(embedded)):
            pass


async def test_a_child_killed_in_the_middle_costs_one_attempt(
    models: ModelClient, embedded: EmbeddedModels, starter: Endpoint
) -> None:
    first = pid_of(embedded)
    async with streaming(models, starter, LONG) as groups:
        await first_words(groups)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(Transient) as caught:
            await anext(group async for group in groups if not group)  # reads on until it breaks
    assert caught.value.code == "dropped"
    async with asyncio.timeout(LIMIT_S):
        while embedded.children:  # noqa: ASYNC110 - until the system has buried it
            await asyncio.sleep(0.01)
    assert text_of(await answer(models, starter, "What is 2+2?"))
    assert pid_of(embedded) != first


async def test_two_sessions_share_it_and_speak_at_the_same_time(
    models: ModelClient, embedded: EmbeddedModels, starter: Endpoint
) -> None:
    async with streaming(models, starter, LONG) as one, streaming(models, starter, f"Please! {LONG}") as other:
        for _ in range(3):  # neither waits for the other's end
            assert await first_words(one)
            assert await first_words(other)
    assert len(embedded.children) == 1


async def test_more_sessions_than_it_can_serve_wait_their_turn(models: ModelClient, starter: Endpoint) -> None:
    answers = await asyncio.gather(*(answer(models, starter, "What is 2+2?") for _ in range(5)))
    assert all(text_of(each) for each in answers)


async def test_a_conversation_that_is_too_long_is_told_as_that(models: ModelClient, starter: Endpoint) -> None:
    from kedge.models.errors import Refused

    with pytest.raises(Refused) as caught:
        await answer(models, starter, "long " * 6000)
    assert caught.value.code == "context_too_long"


async def test_a_file_of_ones_own_is_found_from_the_workspace_and_from_home(
    models: ModelClient, embedded: EmbeddedModels, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "Mine.gguf").symlink_to(cache.starter())
    for name in ("Mine.gguf", str(tmp_path / "project" / "Mine.gguf"), "~/project/Mine.gguf"):
        env = {"HOME": str(tmp_path)}
        endpoint = await embedded.load(name, directory=tmp_path / "project", env=env, report=tell)
        assert endpoint.name == f"local/{name}"
        assert text_of(await answer(models, endpoint, "Hello."))
    assert len(embedded.children) == 1


async def test_its_socket_is_for_nobody_else(embedded: EmbeddedModels, starter: Endpoint, runtime_dir: Path) -> None:
    socket = Path(embedded.children[0].settings.socket)
    assert stat.S_IMODE(socket.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert socket.is_relative_to(runtime_dir)


async def test_what_is_idle_is_unloaded_and_comes_back(data_dir: Path, tmp_path: Path, runtime_dir: Path) -> None:
    embedded = EmbeddedModels(data_dir, idle_s=0.05)
    models = ModelClient(local=embedded)
    endpoint = await embedded.load("starter", directory=tmp_path, env={}, report=tell)
    await gone(pid_of(embedded))
    assert text_of(await answer(models, endpoint, "Hello."))
    await models.close()
    await embedded.close()


async def test_a_path_that_is_too_long_for_a_socket_is_not_used(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    embedded = EmbeddedModels(data_dir)
    await embedded.load("starter", directory=tmp_path, env={}, report=tell)
    socket = Path(embedded.children[0].settings.socket)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    await embedded.close()
    assert not socket.parent.exists()


async def test_closing_leaves_nothing_behind(embedded: EmbeddedModels, starter: Endpoint, runtime_dir: Path) -> None:
    pid = pid_of(embedded)
    await embedded.close()
    assert not is_alive(pid)
    assert list((runtime_dir / "kedge").iterdir()) == []


@pytest.mark.parametrize("size", [0, 20, 1_000, 60_000, 50_000_000])
async def test_a_truncated_file_is_one_line_and_the_others_go_on(
    size: int, models: ModelClient, embedded: EmbeddedModels, starter: Endpoint, tmp_path: Path
) -> None:
    broken = tmp_path / "cut.gguf"
    shutil.copyfile(cache.starter(), broken)
    os.truncate(broken, size)
    with pytest.raises(ConfigError) as caught:
        await embedded.load("cut.gguf", directory=tmp_path, env={}, report=tell)
    assert caught.value.code == "bad_config"
    assert caught.value.text.startswith("local/cut.gguf cannot be loaded: ")
    assert "\n" not in caught.value.text
    assert text_of(await answer(models, starter, "Hello."))


async def test_a_file_that_is_something_else_is_one_line(embedded: EmbeddedModels, tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"This is no model, whatever its name says.")
    (tmp_path / "directory.gguf").mkdir()
    for name in ("no.gguf", "directory.gguf", "none.gguf", "begin"):
        with pytest.raises(ConfigError) as caught:
            await embedded.load(name, directory=tmp_path, env={}, report=tell)
        assert (caught.value.code, name in caught.value.text) == ("bad_config", True)
        assert "\n" not in caught.value.text


async def test_damaged_weights_cannot_hurt_the_server(
    embedded: EmbeddedModels, models: ModelClient, tmp_path: Path
) -> None:
    """llama.cpp may refuse such a file, crash on it or talk nonsense: it does so in its own process."""
    damaged = tmp_path / "damaged.gguf"
    shutil.copyfile(cache.starter(), damaged)
    with damaged.open("r+b") as file:
        file.seek(2_000_000)
        file.write(os.urandom(20_000_000))
    with contextlib.suppress(ConfigError, Transient):
        endpoint = await embedded.load("damaged.gguf", directory=tmp_path, env={}, report=tell)
        async with streaming(models, endpoint, "Hello.") as groups:
            await first_words(groups)
    starter = await embedded.load("starter", directory=tmp_path, env={}, report=tell)
    assert text_of(await answer(models, starter, "Hello."))


async def test_without_the_extra_it_says_how_to_install_it(
    embedded: EmbeddedModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert not embedded.is_available()
    with pytest.raises(ConfigError) as caught:
        await embedded.load("starter", directory=tmp_path, env={}, report=tell)
    assert caught.value.code == "no_model"
    assert "pip install 'kedge[local]'" in caught.value.text


async def test_the_library_is_not_loaded_into_the_server(starter: Endpoint) -> None:
    assert "xllamacpp" not in sys.modules


SERVER = """
import asyncio, sys
from pathlib import Path
from kedge.models.embedded.models import EmbeddedModels

async def main():
    embedded = EmbeddedModels(Path(sys.argv[1]))
    async def tell(sentence, details): ...
    await embedded.load("starter", directory=Path("/"), env={}, report=tell)
    print(embedded.children[0].pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_it_dies_with_the_server(data_dir: Path, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, str(data_dir), env=env, stdout=pipe)
    assert server.stdout is not None
    pid = int(await server.stdout.readline())
    assert is_alive(pid)
    server.kill()
    await server.wait()
    await gone(pid)


async def gone(pid: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while is_alive(pid):  # noqa: ASYNC110 - nobody tells of a process that is not ours
            await asyncio.sleep(0.01)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def is_idle(pid: int) -> bool:
    """Whether it uses no CPU for a while."""
    before = cpu_s(pid)
    await asyncio.sleep(0.2)
    return cpu_s(pid) - before <= 0.01
