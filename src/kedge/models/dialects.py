"""Where servers of the chat wire want it otherwise, as data. One that is not named here gets what nearly all take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kedge.models.ids import IdRule
from kedge.models.values import Endpoint


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    host: str = ""  # by whose address it is known, also where the provider has another name
    ids: IdRule = "any"  # of calls
    bound_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    # Usage is told by all; some tell it only when asked to, and some refuse to be asked.
    asks_usage: bool = True
    # A prompt right after results is refused: a word of the assistant's comes between.
    user_after_results: bool = True
    # Steps of one session go where its cache is: the field, or the header, that says which session it is.
    session_field: str = ""
    session_header: str = ""
    # Models of Anthropic's cache what is marked, and the server sets the marks itself when asked to.
    marks_claude: bool = False


PLAIN = Dialect()
# By the provider's name. OpenAI's is that of its address alone: who sets OPENAI_BASE_URL means some other server.
DIALECTS: Mapping[str, Dialect] = {
    "openai": Dialect(
        host="api.openai.com",
        bound_field="max_completion_tokens",  # its reasoning models refuse the older name; most others know only that
        session_field="prompt_cache_key",
    ),
    "mistral": Dialect(host="api.mistral.ai", ids="mistral", asks_usage=False, user_after_results=False),
    "openrouter": Dialect(host="openrouter.ai", session_field="session_id", marks_claude=True),
    "xai": Dialect(host="api.x.ai", session_header="x-grok-conv-id"),
}
_BY_HOST = {dialect.host: dialect for dialect in DIALECTS.values()}


def dialect_of(endpoint: Endpoint) -> Dialect:
    if (found := _BY_HOST.get(endpoint.host)) is not None:
        return found
    return PLAIN if endpoint.provider == "openai" else DIALECTS.get(endpoint.provider, PLAIN)
