"""A login is checked, stored, and used from the next model call on; a run whose key is refused waits for one (P8)."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from kedge.config.schema import AgentConfig, Config, CredentialsConfig, ProviderConfig
from kedge.models import provider_registry
from kedge.models.keys.credentials import CREDENTIALS_FILE
from kedge.protocol.api import Credential, LoginBody, StoredCredential
from kedge.protocol.errors import Invalid, KedgeError, NotFound, Unavailable
from kedge.protocol.events import AgentEvent, Event
from kedge.protocol.runs import RunEnd
from tests.agent.driver import Driver
from tests.models.packages import Package, laid_out
from tests.models.proxies import new_authority, proxy_to, tls_front
from tests.support.harness import Kedge
from tests.support.model_door import Door
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer
from tests.support.stores import StoreKind

OLD, NEW, BAD = "old.planted.key.0001", "new.planted.key.0002", "bad.planted.key.0003"


@pytest.fixture
async def user(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    """Somebody whose shell names an address and no key."""
    env = {"OPENAI_BASE_URL": model_server.base_url, "KEDGE_MODEL": "openai/tester", "PATH": os.environ["PATH"]}
    async with Driver(kedge, model_server.base_url, env=env) as driver:
        yield driver


async def log_in(driver: Driver, key: str, **fields: Any) -> StoredCredential:
    given: dict[str, Any] = {"provider_id": "openai", "api_key": key, **fields}
    body = LoginBody(**given)
    return await (await driver.agent.logins()).log_in(body, Path("/"))


async def listed(driver: Driver) -> list[Credential]:
    return (await (await driver.agent.logins()).list_credentials(Path("/"))).credentials


def stored(driver: Driver) -> dict[str, Any]:
    path = driver.kedge.data / CREDENTIALS_FILE
    return json.loads(path.read_text())["providers"] if path.exists() else {}


def is_waiting(event: Event) -> bool:
    return isinstance(event.payload, AgentEvent) and event.payload.type == "re_authenticate"


def sent_keys(model_server: ModelServer) -> list[str]:
    return [call.headers.get("authorization", "").removeprefix("Bearer ") for call in model_server.calls]


def configure(driver: Driver, *, wait_s: float = 600, **settings: Any) -> None:
    driver.config = Config(
        agent=AgentConfig(titles=False),
        credentials=CredentialsConfig(wait_s=wait_s),
        providers={"openai": ProviderConfig(**settings)},
    )


# handing in


async def test_a_right_key_is_stored_and_used_by_the_next_run(user: Driver, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[NEW])
    told = await log_in(user, f" {NEW}\n")
    assert told == StoredCredential(provider_id="openai", stored_in="file", last_four="0002")
    assert stored(user) == {"openai": {"api_key": NEW}}
    assert (await user.ask("go")).error is None
    assert sent_keys(model_server) == [NEW]


async def test_a_refused_key_is_not_stored_and_the_one_before_stays(user: Driver, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[OLD])
    await log_in(user, OLD)
    with pytest.raises(Invalid) as caught:
        await log_in(user, BAD)
    assert caught.value.code == "key_refused"
    assert BAD not in str(caught.value)
    assert stored(user) == {"openai": {"api_key": OLD}}


async def test_a_key_may_be_stored_unchecked(user: Driver, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[OLD])
    await log_in(user, BAD, check=False)
    assert stored(user) == {"openai": {"api_key": BAD}}
    assert model_server.door.asked == []


async def test_a_provider_that_is_not_there_is_no_refusal(user: Driver) -> None:
    with pytest.raises(Unavailable, match=r"--no-check") as caught:
        await log_in(user, NEW, base_url="http://127.0.0.1:1/v1")
    assert caught.value.code == "provider_unreachable"
    assert stored(user) == {}


async def test_a_key_is_checked_where_the_caller_says(user: Driver, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[NEW])
    await log_in(user, NEW, provider_id="anthropic", base_url=model_server.anthropic_url)
    assert list(stored(user)) == ["anthropic"]
    configure(user)
    user.config = Config(providers={"company": ProviderConfig(base_url=model_server.base_url)})
    await log_in(user, NEW, provider_id="company", base_url="")
    assert list(stored(user)) == ["anthropic", "company"]


async def test_a_key_is_checked_by_the_way_of_who_brings_it(
    user: Driver, model_server: ModelServer, tmp_path: Path
) -> None:
    model_server.door = Door(accepted=[NEW])
    authority = new_authority(tmp_path, "models.test")
    async with tls_front(model_server.port, authority) as front, proxy_to(front) as proxy:
        shell = {
            "COMPANY_BASE_URL": "https://models.test/v1",
            "HTTPS_PROXY": proxy.url,
            "SSL_CERT_FILE": str(authority.ca_file),
        }
        user.config = Config(providers={"company": ProviderConfig()})
        with pytest.raises(Invalid, match=r"models\.test"):
            await log_in(user, BAD, provider_id="company", env=shell)
        await log_in(user, NEW, provider_id="company", env=shell)
        assert proxy.asked
    assert list(stored(user)) == ["company"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"provider_id": "opanai"}, "unknown_provider"),
        ({"provider_id": BAD.upper()}, "unknown_provider"),
        ({"api_key": ""}, "invalid_key"),
        ({"api_key": " \n"}, "invalid_key"),
        ({"api_key": f"{BAD}\nmore"}, "invalid_key"),
        ({"api_key": f"{BAD}\N{EN DASH}"}, "invalid_key"),
        ({"api_key": BAD * 10_000}, "invalid_key"),
        ({"base_url": f"http://me:{BAD}@127.0.0.1/v1"}, "bad_config"),
    ],
)
async def test_what_can_be_no_login_is_told_without_repeating_it(
    user: Driver, fields: dict[str, str], code: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await log_in(user, NEW, **fields)
    assert caught.value.code == code
    assert BAD not in caught.value.message
    assert BAD.upper() not in caught.value.message
    assert stored(user) == {}
    assert NEW not in repr(LoginBody(provider_id="openai", api_key=NEW))


async def test_a_file_that_others_can_read_is_told_and_kept(user: Driver) -> None:
    await log_in(user, OLD, check=False)
    (user.kedge.data / CREDENTIALS_FILE).chmod(0o644)
    logins = await user.agent.logins()
    for attempt in (log_in(user, NEW, check=False), logins.list_credentials(Path("/")), logins.log_out("openai")):
        with pytest.raises(KedgeError, match="chmod 600") as caught:
            await attempt
        assert caught.value.code == "bad_config"
    assert stored(user) == {"openai": {"api_key": OLD}}


# seeing and forgetting


async def test_where_keys_come_from_is_listed_by_their_ends(user: Driver) -> None:
    configure(user, api_key="configured.planted.0004", api_key_command="echo nothing")
    await log_in(user, NEW, check=False)
    await log_in(user, "short", provider_id="anthropic", check=False)
    found = [(c.provider_id, c.source, c.is_used, c.last_four, c.stored_in) for c in await listed(user)]
    assert found == [
        ("openai", "config", True, "0004", None),
        ("openai", "login", False, "0002", "file"),
        ("openai", "command", False, None, None),
        ("anthropic", "login", True, None, "file"),
    ]
    everything = await (await user.agent.logins()).list_credentials(Path("/"))
    assert {"openai", "anthropic", "ollama"} <= {each.provider_id for each in everything.providers}
    needs_key = {each.provider_id: each.needs_key for each in everything.providers}
    assert (needs_key["openai"], needs_key["ollama"]) == (True, False)


async def test_a_forgotten_key_is_gone(user: Driver) -> None:
    await log_in(user, NEW, check=False)
    logins = await user.agent.logins()
    await logins.log_out("openai")
    assert stored(user) == {}
    assert await listed(user) == []
    with pytest.raises(NotFound):
        await logins.log_out("openai")


# while a run works


async def test_a_login_is_used_by_the_next_step_of_a_run_that_goes_on(kedge: Kedge, model_server: ModelServer) -> None:
    from kedge.tools.registry import TOOLS

    call = PlannedCall("glob", {"pattern": "*"})
    model_server.next_plans = [Plan(tool_calls=(call,), gate="g", gate_after=0), Plan(text="done")]
    env = {"OPENAI_BASE_URL": model_server.base_url, "KEDGE_MODEL": "openai/tester", "PATH": os.environ["PATH"]}
    async with Driver(kedge, model_server.base_url, env=env, tools=TOOLS) as driver:
        await log_in(driver, OLD, check=False)
        run = await kedge.send(await kedge.session(), "go", permissions="deny")
        await model_server.until(lambda calls: any(call.held for call in calls))
        await log_in(driver, NEW, check=False)
        model_server.release("g")
        assert (await kedge.end(run.run_id)).text == "done"
    assert sent_keys(model_server) == [OLD, NEW]


async def test_a_run_that_a_person_watches_waits_for_a_new_login_and_goes_on(
    user: Driver, model_server: ModelServer
) -> None:
    await log_in(user, OLD, check=False)
    model_server.door = Door(accepted=[NEW])
    session_id = await user.kedge.session()
    run = await user.kedge.send(session_id, "go")
    await user.kedge.seen(is_waiting)
    with pytest.raises(Invalid):
        await log_in(user, BAD)
    await log_in(user, NEW)
    assert (await user.kedge.end(run.run_id)).text == "FAKE-ANSWER-OK"
    events = await user.agent_events()
    assert [(event.type, event.provider_id, event.code) for event in events] == [
        ("re_authenticate", "openai", "auth"),
        ("retry", None, "auth"),
    ]
    assert events[0].details == {"wait_s": 600}
    assert "kedge login openai" in (events[0].message or "")
    assert await user.assistant_messages(session_id) == [("FAKE-ANSWER-OK", "end_turn")]


async def test_a_login_at_a_packages_provider_is_offered_and_waited_for_too(
    kedge: Kedge, model_server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f'provider = {{"base_url": "{model_server.base_url}", "key_variables": ["LOGIN_TOKEN"]}}\n'
    laid_out(
        Package("pkg-login", "1.0", {"acme": "kedge_login_package:provider"}, {"kedge_login_package.py": code}),
        tmp_path,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    provider_registry.reload()
    env = {"KEDGE_MODEL": "acme/tester", "LOGIN_TOKEN": OLD, "PATH": os.environ["PATH"]}
    try:
        async with Driver(kedge, model_server.base_url, env=env) as driver:
            offered = (await (await driver.agent.logins()).list_credentials(Path("/"))).providers
            assert "LOGIN_TOKEN" in {each.key_variable for each in offered if each.provider_id == "acme"}
            model_server.door = Door(accepted=[NEW])
            run = await kedge.send(await kedge.session(), "go")
            await kedge.seen(is_waiting)
            await log_in(driver, NEW, provider_id="acme")
            assert (await kedge.end(run.run_id)).text == "FAKE-ANSWER-OK"
    finally:
        provider_registry.reload()


async def test_a_login_helps_also_where_a_bad_variable_comes_before_it(user: Driver, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[NEW])
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": BAD, "PATH": os.environ["PATH"]}
    session_id = await user.kedge.session()
    run = await user.kedge.send(session_id, "go", env=env, model="openai/tester")
    await user.kedge.seen(is_waiting)
    await log_in(user, NEW)
    assert (await user.kedge.end(run.run_id)).error is None
    assert (await user.ask("go", session_id, env=env, model="openai/tester", permissions="deny")).error is None
    assert model_server.door.refused[-1] == BAD, "it is looked for in the same order as ever, and passed over"


async def test_a_second_key_that_is_refused_is_waited_for_again(user: Driver, model_server: ModelServer) -> None:
    await log_in(user, OLD, check=False)
    model_server.door = Door(accepted=[NEW])
    run = await user.kedge.send(await user.kedge.session(), "go")
    await user.kedge.seen(is_waiting)
    await log_in(user, BAD, check=False)

    def is_waiting_again(event: Event) -> bool:
        return is_waiting(event) and sum(map(is_waiting, user.kedge.watcher.log)) == 2

    await user.kedge.seen(is_waiting_again)
    await log_in(user, NEW)
    assert (await user.kedge.end(run.run_id)).error is None
    assert list(dict.fromkeys(model_server.door.refused))[:2] == [OLD, BAD]


@pytest.mark.parametrize("permissions", ["deny", "allow"])
async def test_where_nobody_watches_the_run_fails_at_once_and_says_what_to_do(
    user: Driver, model_server: ModelServer, permissions: str
) -> None:
    await log_in(user, OLD, check=False)
    model_server.door = Door(accepted=[NEW])
    end = await user.ask("go", permissions=permissions)
    assert end.code == "auth"
    assert end.error is not None
    assert end.error.endswith("check OPENAI_API_KEY, or run: kedge login openai")
    assert [event.type for event in await user.agent_events()] == ["error"]


async def test_the_wait_has_an_end(user: Driver, model_server: ModelServer) -> None:
    configure(user, wait_s=0.2)
    await log_in(user, OLD, check=False)
    model_server.door = Door(accepted=[NEW])
    end = await user.ask("go")
    assert (end.code, (end.error or "").endswith("nobody logged in within 0.2 s")) == ("auth", True)
    assert [event.type for event in await user.agent_events()] == ["re_authenticate", "error"]
    configure(user, wait_s=0)
    assert (await user.ask("go")).code == "auth"
    assert sum(event.type == "re_authenticate" for event in await user.agent_events()) == 1


async def test_a_run_that_waits_for_a_login_can_be_cancelled(user: Driver, model_server: ModelServer) -> None:
    await log_in(user, OLD, check=False)
    model_server.door = Door(accepted=[NEW])
    run = await user.kedge.send(await user.kedge.session(), "go")
    await user.kedge.seen(is_waiting)
    await user.kedge.engine.store.cancel_run(user.kedge.workspace_id, run.run_id)
    assert (await user.kedge.end(run.run_id)).cancelled


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_a_run_that_waits_for_a_login_waits_again_after_a_restart(
    user: Driver, model_server: ModelServer, how: str
) -> None:
    await log_in(user, OLD, check=False)
    model_server.door = Door(accepted=[NEW])
    run = await user.kedge.send(await user.kedge.session(), "go")
    first = (await user.kedge.seen(is_waiting)).seq or 0
    await (user.kedge.restart() if how == "restart" else user.kedge.crash_and_start())
    await user.kedge.seen(lambda event: is_waiting(event) and (event.seq or 0) > first)
    await log_in(user, NEW)
    assert (await user.kedge.end(run.run_id)).error is None


async def test_runs_that_wait_for_a_login_hold_up_no_others(
    store_kind: StoreKind, tmp_path: Path, model_server: ModelServer
) -> None:
    env = {"OPENAI_BASE_URL": model_server.base_url, "KEDGE_MODEL": "openai/tester", "PATH": os.environ["PATH"]}
    async with (
        Kedge(store_kind, tmp_path, max_turns=1) as kedge,
        Driver(kedge, model_server.base_url, env=env) as driver,
    ):
        await log_in(driver, OLD, check=False)
        model_server.door = Door(accepted=[NEW])
        waiting = await kedge.send(await kedge.session(), "go")
        await kedge.seen(is_waiting)
        other: RunEnd = await driver.ask("go", permissions="deny", env={**env, "OPENAI_API_KEY": NEW})
        assert other.error is None
        await log_in(driver, NEW)
        assert (await kedge.end(waiting.run_id)).error is None
