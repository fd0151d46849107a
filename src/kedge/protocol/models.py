"""Available models: the response of `GET W/models`."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["large", "small"]
Source = Literal["catalog", "config", "package", "server", "local"]


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Unknown values are null. Prices are in dollars per million tokens."""

    name: str  # PROVIDER/NAME, as `-m` takes it
    context_window: int | None
    max_output_tokens: int | None
    input_price: float | None
    output_price: float | None
    cache_read_price: float | None
    cache_write_price: float | None
    images: bool
    tools: bool
    reasoning: bool  # accepts an effort
    source: Source  # where the model is listed
    roles: list[Role]  # used by default for these


class OfferedProvider(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is one line for the user: the source of the API key, or what to do."""

    id: str
    title: str
    usable: bool
    why: str
    models: list[OfferedModel]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is used by runs that name none, and `small_model` writes titles of sessions."""

    model: str | None
    small_model: str | None
    why: str
    catalog_date: str
    providers: list[OfferedProvider]
