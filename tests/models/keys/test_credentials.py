"""Where a key comes from, what happens when it is refused, and that nobody ever tells it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from kedge.config.schema import Config, ProviderConfig
from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials, KeyCommands
from kedge.models.provider_registry import configured_providers
from kedge.models.providers import Provider

KEY = "planted.key.0123456789"
LIMIT_S = 20.0
ENV = {"PATH": os.environ["PATH"]}


def provider(api_key: str | None = None, api_key_command: str | None = None) -> Provider:
    settings = ProviderConfig(api_key=api_key, api_key_command=api_key_command)
    return configured_providers(Config(providers={"openai": settings}))["openai"]


def stored(tmp_path: Path, key: str = KEY, mode: int = 0o600) -> Path:
    path = tmp_path / CREDENTIALS_FILE
    path.write_text(json.dumps({"version": 1, "providers": {"openai": {"api_key": key, "later": 1}}}))
    path.chmod(mode)
    return path


def counting(tmp_path: Path, prints: str = "key-$n") -> str:
    """A command that counts how often it ran, and prints another key each time."""
    count = shlex.quote(str(tmp_path / "count"))
    return f'echo x >> {count}; n=$(wc -l < {count}); n=$((n)); echo "{prints}"'


def runs(tmp_path: Path) -> int:
    path = tmp_path / "count"
    return len(path.read_text().splitlines()) if path.exists() else 0


async def test_the_configuration_comes_first_then_the_variable_the_file_and_the_command(tmp_path: Path) -> None:
    credentials = Credentials(stored(tmp_path, "from-file"))
    command = "echo from-command"
    env = {**ENV, "OPENAI_API_KEY": " from-variable\n"}
    assert await credentials.find_key(provider(api_key="from-config", api_key_command=command), env) == "from-config"
    assert await credentials.find_key(provider(api_key_command=command), env) == "from-variable"
    assert await credentials.find_key(provider(api_key="", api_key_command=command), ENV) == "from-file"
    assert await Credentials().find_key(provider(api_key_command=command), ENV) == "from-command"
    assert await Credentials(tmp_path / "none.json").find_key(provider(), ENV) is None


async def test_the_providers_with_a_stored_key_are_listed_without_it(tmp_path: Path) -> None:
    found = await Credentials(stored(tmp_path)).load_stored()
    assert list(found) == ["openai"]
    assert KEY not in repr(found)
    assert await Credentials(stored(tmp_path, "")).load_stored() == {}
    assert await Credentials().load_stored() == {}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
async def test_a_file_that_others_can_read_is_refused_with_the_way_out(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        await Credentials(stored(tmp_path, mode=mode)).find_key(provider(), ENV)
    assert KEY not in caught.value.text


@pytest.mark.parametrize("content", [f'{{"providers": {{"openai": "{KEY}"}}}}', KEY, "", "[]", f'{{"a": "{KEY}'])
async def test_a_damaged_file_is_one_line_that_quotes_nothing_of_it(tmp_path: Path, content: str) -> None:
    path = stored(tmp_path)
    path.write_text(content)
    with pytest.raises(ConfigError, match="damaged") as caught:
        await Credentials(path).find_key(provider(), ENV)
    assert KEY not in caught.value.text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "\n" not in caught.value.text


async def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        await Credentials(tmp_path).find_key(provider(), ENV)


@pytest.mark.parametrize("key", [f"{KEY}\nmore", f"{KEY} more", f"{KEY}\N{EN DASH}", f"{KEY}\x00"])
async def test_a_key_with_characters_that_no_header_takes_names_its_place_and_not_itself(
    tmp_path: Path, key: str
) -> None:
    cases = [
        (provider(api_key=key), ENV, None, r"providers\.openai\.api_key"),
        (provider(), {"OPENAI_API_KEY": key}, None, "OPENAI_API_KEY"),
        (provider(), ENV, stored(tmp_path, key), "stored key of openai"),
    ]
    for which, env, path, hint in cases:
        with pytest.raises(ConfigError, match=hint) as caught:
            await Credentials(path).find_key(which, env)
        assert KEY not in caught.value.text
    with pytest.raises(ConfigError, match="api_key_command of openai") as caught:
        await Credentials().find_key(provider(api_key_command=f"printf '{KEY}\\nmore'"), ENV)
    assert KEY not in caught.value.text


async def test_a_command_runs_once_for_many_who_ask_at_once(tmp_path: Path) -> None:
    credentials = Credentials()
    which = provider(api_key_command=counting(tmp_path))
    async with asyncio.timeout(LIMIT_S):
        keys = await asyncio.gather(*(credentials.find_key(which, ENV) for _ in range(5)))
    assert keys == ["key-1"] * 5
    assert await credentials.find_key(which, {**ENV, "PWD": "/elsewhere", "SHLVL": "3"}) == "key-1"
    assert runs(tmp_path) == 1


async def test_another_callers_environment_is_another_key(tmp_path: Path) -> None:
    credentials = Credentials()
    which = provider(api_key_command='echo "key-of-$WHO"')
    assert await credentials.find_key(which, {**ENV, "WHO": "me"}) == "key-of-me"
    assert await credentials.find_key(which, {**ENV, "WHO": "you"}) == "key-of-you"
    assert await credentials.find_key(which, {**ENV, "WHO": "me"}) == "key-of-me"


async def test_a_refused_key_makes_the_command_run_again_and_only_once_for_all(tmp_path: Path) -> None:
    credentials = Credentials()
    which = provider(api_key_command=counting(tmp_path))
    old = await credentials.find_key(which, ENV)
    async with asyncio.timeout(LIMIT_S):
        renewed = await asyncio.gather(*(credentials.find_other_key(which, ENV, old) for _ in range(3)))
    assert renewed == ["key-2"] * 3
    assert await credentials.find_key(which, ENV) == "key-2"
    assert runs(tmp_path) == 2


async def test_a_command_that_prints_the_same_key_anew_is_believed(tmp_path: Path) -> None:
    credentials = Credentials()
    which = provider(api_key_command=counting(tmp_path, "same-key"))
    assert await credentials.find_key(which, ENV) == "same-key"
    assert await credentials.find_other_key(which, ENV, "same-key") == "same-key"
    assert runs(tmp_path) == 2


async def test_a_refused_key_is_replaced_by_the_one_that_is_stored_now(tmp_path: Path) -> None:
    credentials = Credentials(stored(tmp_path, "old"))
    assert await credentials.find_key(provider(), ENV) == "old"
    assert await credentials.find_other_key(provider(), ENV, "old") is None
    stored(tmp_path, "new")
    assert await credentials.find_other_key(provider(), ENV, "old") == "new"


async def test_a_refused_variable_or_setting_has_no_other() -> None:
    assert await Credentials().find_other_key(provider(), {"OPENAI_API_KEY": "k"}, "k") is None
    assert await Credentials().find_other_key(provider(api_key="k"), ENV, "k") is None
    assert await Credentials().find_other_key(provider(), ENV, None) is None


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (f"echo {KEY}; echo {KEY} >&2; exit 3", "failed with exit code 3"),
        (f"echo {KEY}; kill -9 $$", f"was ended by signal {signal.SIGKILL.value}"),
        (f"echo {KEY} >&2", "printed no API key"),
        (f"yes {KEY}", "printed no API key"),
        (f"command-that-does-not-exist {KEY}", "failed with exit code 127"),
    ],
)
async def test_a_command_that_fails_is_one_line_with_its_provider_and_its_end(command: str, hint: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ConfigError) as caught:
            await Credentials().find_key(provider(api_key_command=command), ENV)
    assert "api_key_command of provider 'openai'" in caught.value.text
    assert hint in caught.value.text
    assert KEY not in caught.value.text
    assert "\n" not in caught.value.text


async def test_a_command_that_failed_is_tried_again(tmp_path: Path) -> None:
    credentials = Credentials()
    ready = tmp_path / "ready"
    which = provider(api_key_command=f"cat {shlex.quote(str(ready))}")
    with pytest.raises(ConfigError):
        await credentials.find_key(which, ENV)
    ready.write_text("a-key\n")
    assert await credentials.find_key(which, ENV) == "a-key"


async def test_a_command_that_does_not_end_is_ended_with_all_its_children(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    command = f"exec 3>{shlex.quote(str(fifo))}; sleep 1000 & wait"
    with pytest.raises(ConfigError, match=r"did not end within 1 s"):
        await Credentials(command_s=1.0).find_key(provider(api_key_command=command), ENV)
    await until_closed(reader)


async def test_who_stops_waiting_ends_the_command(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    command = f"exec 3>{shlex.quote(str(fifo))}; echo begun >&3; sleep 1000"
    asking = asyncio.create_task(Credentials().find_key(provider(api_key_command=command), ENV))
    await readable(reader)
    assert os.read(reader, 100) == b"begun\n"
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until_closed(reader)


async def test_the_command_stands_at_home_with_nothing_to_read(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd() + '|' + sys.stdin.read())"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    key, _ = await KeyCommands().find_key("p", command, {**ENV, "HOME": str(tmp_path)})
    assert key == f"{tmp_path.resolve()}|"


async def test_a_planted_key_is_in_no_representation_and_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    credentials = Credentials(stored(tmp_path))
    which = provider(api_key_command=f"echo {KEY}")
    assert await credentials.find_key(which, ENV) == KEY
    assert await Credentials().find_other_key(which, ENV, "other") == KEY
    assert KEY not in repr(credentials) + repr(vars(credentials)) + repr(which) + caplog.text


async def readable(reader: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(reader, ready.set)
    try:
        async with asyncio.timeout(LIMIT_S):
            await ready.wait()
    finally:
        loop.remove_reader(reader)


async def until_closed(reader: int) -> None:
    """Until nobody holds the other end any more."""
    try:
        await readable(reader)
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
