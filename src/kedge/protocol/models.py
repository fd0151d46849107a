"""Which models there are, and which of them can be used: the answer of `GET W/models`."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["large", "small"]
Source = Literal["catalog", "config", "package", "server", "local"]


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What is not known is null. Prices are in dollars for a million tokens."""

    name: str  # PROVIDER/NAME, as `-m` takes it
    context_window: int | None
    max_output_tokens: int | None
    input_price: float | None
    output_price: float | None
    cache_read_price: float | None
    cache_write_price: float | None
    images: bool
    tools: bool
    reasoning: bool  # takes an effort
    source: Source  # who says that it is there
    roles: list[Role]  # that it has where nobody names a model


class OfferedProvider(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is a line: where its key comes from, or what to do."""

    id: str
    title: str
    usable: bool
    why: str
    models: list[OfferedModel]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """`model` does the work of a run that names none, and `small_model` names its session."""

    model: str | None
    small_model: str | None
    why: str
    catalog_date: str
    providers: list[OfferedProvider]
