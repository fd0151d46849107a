"""Whether a key is right is found out as the provider has it, with as little as that takes, and never by mistake."""

from __future__ import annotations

import pytest

from kedge.config.schema import WireName
from kedge.models.client import ModelClient
from kedge.models.errors import Refused, Transient
from kedge.models.keys.check import check_key
from kedge.models.values import Endpoint
from tests.support.model_door import Door
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

RIGHT, WRONG = "right.planted.key.0001", "wrong.planted.key.0002"
CHAT = "/v1/chat/completions"


def endpoint(
    server: ModelServer, key: str, provider: str = "openai", wire: WireName = "chat", model: str = "m"
) -> Endpoint:
    url = server.base_url if wire == "chat" else server.anthropic_url
    return Endpoint(provider=provider, model=model, base_url=url, api_key=key, wire=wire)


async def is_taken(server: ModelServer, where: Endpoint) -> bool:
    models = ModelClient()
    refusal: Refused | None = None
    try:
        await check_key(models, where)
    except Refused as error:
        refusal = error
    finally:
        await models.close()
    if refusal is not None:
        assert refusal.code == "auth"
        assert RIGHT not in refusal.text
        assert WRONG not in refusal.text
    return refusal is None


@pytest.mark.parametrize("wire", ["chat", "anthropic"])
async def test_a_list_that_needs_the_key_is_enough(model_server: ModelServer, wire: WireName) -> None:
    model_server.door = Door(accepted=[RIGHT])
    assert await is_taken(model_server, endpoint(model_server, RIGHT, wire=wire))
    assert not await is_taken(model_server, endpoint(model_server, WRONG, wire=wire))
    assert model_server.count == 0, "no model was asked"


async def test_a_list_that_everybody_sees_proves_nothing_and_one_answer_does(model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True)
    assert await is_taken(model_server, endpoint(model_server, RIGHT))
    assert [(call.path, len(call.body["messages"])) for call in model_server.calls] == [(CHAT, 2)]
    assert not await is_taken(model_server, endpoint(model_server, WRONG))
    assert model_server.door.refused == [WRONG]


async def test_where_no_model_is_named_the_first_one_of_the_list_answers(model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True)
    assert await is_taken(model_server, endpoint(model_server, RIGHT, model=""))
    assert [call.body["model"] for call in model_server.calls] == ["fake-model"]


async def test_a_key_that_may_not_list_models_may_be_good_for_answers(model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_nobody=True)
    assert await is_taken(model_server, endpoint(model_server, RIGHT))
    assert not await is_taken(model_server, endpoint(model_server, RIGHT, model="")), "nobody can be asked"


async def test_openrouter_says_itself_whether_a_key_is_right(model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True, has_key_path=True)
    assert await is_taken(model_server, endpoint(model_server, RIGHT, "openrouter"))
    assert not await is_taken(model_server, endpoint(model_server, WRONG, "openrouter"))
    assert model_server.door.asked == ["/v1/key", "/v1/key"]


async def test_a_gateway_in_its_place_that_does_not_say_is_asked_otherwise(model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT])
    assert await is_taken(model_server, endpoint(model_server, RIGHT, "openrouter"))
    assert not await is_taken(model_server, endpoint(model_server, WRONG, "openrouter"))


@pytest.mark.parametrize("plan", [Plan(status=402), Plan(status=400, message="no"), Plan(status=404)])
async def test_whoever_is_refused_for_another_reason_was_let_in(model_server: ModelServer, plan: Plan) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True)
    model_server.plan = plan
    assert await is_taken(model_server, endpoint(model_server, RIGHT))


@pytest.mark.parametrize("plan", [Plan(status=500), Plan(status=429), Plan(drop_after=0)])
async def test_a_provider_in_trouble_says_neither_yes_nor_no(model_server: ModelServer, plan: Plan) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True)
    model_server.plan = plan
    with pytest.raises(Transient):
        await is_taken(model_server, endpoint(model_server, RIGHT))


async def test_a_provider_that_never_answers_is_not_waited_for(model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True)
    model_server.plan = Plan(hang_after=0)
    models = ModelClient()
    with pytest.raises(Transient, match="did not answer within 1 s"):
        await check_key(models, endpoint(model_server, RIGHT), limit_s=1.0)
    await models.close()


@pytest.mark.usefixtures("_no_proxy")
async def test_nobody_there_is_no_refusal() -> None:
    models = ModelClient()
    nobody = Endpoint(provider="openai", model="m", base_url="http://127.0.0.1:1/v1", api_key=RIGHT)
    with pytest.raises(Transient) as caught:
        await check_key(models, nobody)
    assert caught.value.code == "unreachable"
    await models.close()
