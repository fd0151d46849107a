"""Web search in a run: offered only if it is configured, with the key of a login, asked for, and its cost counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.config.schema import PermissionsConfig, SearchConfig
from kedge.protocol.api import LoginBody
from kedge.protocol.messages import Reasoning
from kedge.protocol.requests import Answer, PermissionRequest
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.models.wires.test_hosted_search import ANTHROPIC, FOUND
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer
from tests.tools.test_web_search import ANSWERS, KEY, serve

SEARCH = [Plan(text="", tool_calls=(PlannedCall("web_search", {"query": "kedge anchor"}),)), Plan(text="done")]


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("EXA_API_KEY", raising=False)
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        yield driver


async def test_the_tool_is_not_there_unless_it_is_configured(driver: Driver, model_server: ModelServer) -> None:
    await driver.ask("hello")
    names = [tool["function"]["name"] for tool in model_server.calls[-1].body["tools"]]
    assert "web_search" not in names
    assert "view" in names


async def test_a_search_is_asked_for_with_its_query_uses_the_login_and_is_paid(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    with serve(ANSWERS["exa"]) as (server, url):
        search = SearchConfig(provider="exa", url=url)
        driver.config = msgspec.structs.replace(driver.config, search=search)
        model_server.on(SEARCH, prompt="without a key")
        session = await kedge.session()
        await driver.ask("without a key", session, permissions="allow")
        assert "kedge login exa" in (await kedge.results(session))[-1].content
        await (await driver.agent.logins()).log_in(LoginBody(provider_id="exa", api_key=KEY), Path("/"))
        model_server.on(SEARCH, prompt="with one")
        receipt = await kedge.send(session, "with one")
        request = await kedge.asked()
        assert isinstance(request, PermissionRequest)
        assert (request.tool, request.action, request.params["query"]) == ("web_search", "search", "kedge anchor")
        assert server.requests == []
        await kedge.store.answer(kedge.workspace_id, "permission", request.id, Answer(action="allow_session", by="me"))
        end = await kedge.end(receipt.run_id)
    assert server.requests[0][2]["x-api-key"] == KEY
    assert end.usage.cost >= 0.007
    assert KEY not in str(model_server.calls[-1].body)
    assert not (await kedge.results(session))[-1].is_error


async def test_an_untrusted_repository_cannot_configure_it(tmp_path: Path) -> None:
    from kedge.config.files import ConfigPaths
    from kedge.config.load import Loader

    (tmp_path / "kedge.toml").write_text('[search]\nprovider = "searxng"\nurl = "http://evil.example"\n')
    loaded = Loader(ConfigPaths((), tmp_path / "none.toml")).load(tmp_path, {"HOME": str(tmp_path)})
    assert loaded.config.search.provider is None
    assert {each.key for each in loaded.ignored} == {"search.provider", "search.url"}


async def test_a_rule_allows_a_search_in_a_run_that_nobody_watches(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    with serve(ANSWERS["searxng"]) as (_, url):
        search, rules = SearchConfig(provider="searxng", url=url), PermissionsConfig(allow=("web_search(kedge *)",))
        driver.config = msgspec.structs.replace(driver.config, search=search, permissions=rules)
        model_server.on(SEARCH)
        session = await kedge.session()
        await driver.ask("go", session, permissions="deny")
    assert "https://example.com/a" in (await kedge.results(session))[0].content


def _as_stream(*events: dict[str, Any]) -> bytes:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}
    listed = [start, *events, {"type": "message_stop"}]
    return "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in listed).encode()


async def test_the_models_own_search_is_stored_returned_and_paid(driver: Driver, kedge: Kedge) -> None:
    with serve(_as_stream(*ANTHROPIC)) as (server, url):
        env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY, "KEDGE_MODEL": "anthropic/claude-sonnet-4-5"}
        search = SearchConfig(provider="model", cost_per_search=0.5)
        driver.config = msgspec.structs.replace(driver.config, search=search)
        session = await kedge.session()
        end = await driver.ask("what is a kedge?", session, env=env)
        assert end.text == "An anchor."
        assert end.usage.cost >= 0.5
        shown = [part for each in await kedge.messages(session) for part in each.parts if isinstance(part, Reasoning)]
        assert "https://example.com/kedge" in shown[0].text
        await driver.ask("go on", session, env=env)
        sent = json.loads(server.requests[-1][3])
        assert sent["tools"][-1]["name"] == "web_search"
        assert FOUND in sent["messages"][1]["content"]
        denied = PermissionsConfig(deny=("web_search",))
        driver.config = msgspec.structs.replace(driver.config, permissions=denied)
        await driver.ask("without", session, env=env)
        sent = json.loads(server.requests[-1][3])
        assert "web_search" not in [tool["name"] for tool in sent["tools"]]
        assert "https://example.com/kedge" in str(sent["messages"][1])
        assert "encrypted_content" not in str(sent)


async def test_a_paused_search_goes_on_with_the_next_request(driver: Driver, kedge: Kedge) -> None:
    pause = {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"output_tokens": 1}}
    with serve(_as_stream(*ANTHROPIC[:6], pause)) as (server, url):
        server.later = [_as_stream(*ANTHROPIC[6:])]
        env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY, "KEDGE_MODEL": "anthropic/claude-sonnet-4-5"}
        driver.config = msgspec.structs.replace(driver.config, search=SearchConfig(provider="model"))
        assert (await driver.ask("what is a kedge?", env=env)).text == "An anchor."
        assert FOUND in json.loads(server.requests[-1][3])["messages"][1]["content"]


async def test_a_model_without_a_search_of_its_own_says_so(driver: Driver, model_server: ModelServer) -> None:
    driver.config = msgspec.structs.replace(driver.config, search=SearchConfig(provider="model"))
    await driver.ask("hello")
    assert any("no web search of its own" in (each.message or "") for each in await driver.agent_events())
    assert "web_search" not in str(model_server.calls[-1].body["tools"])
