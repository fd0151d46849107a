"""What is known of the vendors' models: windows, bounds, prices, abilities. From catalog.json, which has a date; the
configuration knows better."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from kedge.config.schema import ProviderConfig
from kedge.models.values import ModelInfo

# What a vendor adds to a model's name for one edition of it.
_EDITION = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)(-v\d+(:\d+)?)?")


class _Model(ModelInfo, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In the file every word must be one that we know."""


class _Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`vendors` made their models, and others offer them too; what `hosts` offer, and its price, is theirs alone."""

    date: str
    about: list[str]
    vendors: dict[str, dict[str, _Model]]
    hosts: dict[str, dict[str, _Model]]


_decode_catalog = msgspec.json.Decoder(_Catalog).decode  # made once: two threads may ask first (see `config.load`)


@cache
def _catalog() -> _Catalog:
    return _decode_catalog((Path(__file__).parent / "catalog.json").read_bytes())


def catalog_date() -> str:
    return _catalog().date


def everything() -> Mapping[str, Mapping[str, ModelInfo]]:
    """The models of each provider, by name."""
    return {**_catalog().vendors, **_catalog().hosts}


def vendor_of(model: str) -> str | None:
    """The vendor of a model that is known by this name."""
    return next((vendor for vendor, models in _catalog().vendors.items() if _key(model, models)), None)


def info(model: str, config: ProviderConfig, provider: str = "", own: ModelInfo | None = None) -> ModelInfo:
    """What is known of a provider's model: its own word (`own`, or the catalog's), else the maker's, by the model's
    own name, because gateways offer the same ones. Unknown ones have the defaults."""
    found = own or _found(model, provider)
    known = {name: getattr(found, name) for name in ModelInfo.__struct_fields__} if found else {}
    if (settings := config.models.get(model)) is not None:
        told = {name: getattr(settings, name, None) for name in ModelInfo.__struct_fields__}
        known |= {name: value for name, value in told.items() if value is not None}
        known["reasoning"] = known.get("reasoning", False) or settings.reasoning_effort is not None
    return ModelInfo(**known)


def _found(model: str, provider: str) -> _Model | None:
    own = _catalog().hosts.get(provider) or _catalog().vendors.get(provider, {})
    if key := _key(model, own):
        return own[key]
    name = model.rpartition("/")[2]  # "maker/model", as gateways write it
    for spelt in dict.fromkeys((name, name.replace(".", "-"))):  # some write "claude-sonnet-4.5"
        for models in _catalog().vendors.values():
            if key := _key(spelt, models):
                return models[key]
    return None


def _key(name: str, models: dict[str, _Model]) -> str | None:
    """The longest name that this one is an edition of."""
    if name in models:
        return name
    fits = [key for key in models if name.startswith(key) and _EDITION.fullmatch(name[len(key) :])]
    return max(fits, key=len, default=None)
