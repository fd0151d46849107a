"""A caller's variables are whatever came over the wire: what no process can be given hurts neither tools nor keys."""

from __future__ import annotations

import pytest

from kedge.config.schema import AgentConfig, Config, ProviderConfig
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer


@pytest.mark.parametrize(
    ("name", "value"), [("BAD", "a\0b"), ("BA\0D", "a"), ("", "a"), ("B=D", "a"), ("BAD", "\ud800")]
)
async def test_a_variable_that_cannot_be_is_left_out(
    kedge: Kedge, model_server: ModelServer, name: str, value: str
) -> None:
    env = {"PATH": "/usr/bin:/bin", "OPENAI_BASE_URL": model_server.base_url, "KEPT": "key-of-a-command", name: value}
    commands = [call("bash", command="echo $KEPT"), call("ls"), call("grep", pattern="x")]
    model_server.on(rounds(commands))
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        provider = ProviderConfig(api_key_command="echo $KEPT")
        driver.config = Config(agent=AgentConfig(titles=False), providers={"openai": provider})
        session = await kedge.session()
        end = await driver.ask("go", session, env=env, model="openai/tester", permissions="allow")
        assert end.error is None
        said = {result.name: result.content for result in await results(driver, session)}
    assert said == {"bash": "key-of-a-command", "ls": ".: 0 files", "grep": "No matches."}
    assert model_server.calls[0].headers["authorization"] == "Bearer key-of-a-command"
