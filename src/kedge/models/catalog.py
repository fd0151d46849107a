"""Properties of known models (context window, limits, prices, abilities) from catalog.json; the configuration overrides
them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from kedge.config.schema import ProviderConfig
from kedge.models.values import ModelInfo

# Suffix of a dated edition of a model.
_EDITION = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)(-v\d+(:\d+)?)?")


class _Model(ModelInfo, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A catalog entry; unknown fields are errors."""


class _Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models by maker (`vendors`), which gateways offer too, and by `hosts`, whose names and prices are only theirs."""

    date: str
    about: list[str]
    vendors: dict[str, dict[str, _Model]]
    hosts: dict[str, dict[str, _Model]]


_decode_catalog = msgspec.json.Decoder(_Catalog).decode  # built once: two threads may be the first (see `config.load`)


@cache
def _catalog() -> _Catalog:
    return _decode_catalog((Path(__file__).parent / "catalog.json").read_bytes())


def catalog_date() -> str:
    return _catalog().date


def list_models() -> Mapping[str, Mapping[str, ModelInfo]]:
    """Return the models of each provider by name."""
    return {**_catalog().vendors, **_catalog().hosts}


def find_vendor(model: str) -> str | None:
    """Return the maker of a model, or None if it is not in the catalog."""
    return next((vendor for vendor, models in _catalog().vendors.items() if _find_name(model, models)), None)


def find_info(model: str, config: ProviderConfig, provider: str = "", own: ModelInfo | None = None) -> ModelInfo:
    """Return the properties of a provider's model.

    Taken from `own` (a provider package), else the provider's catalog entry, else the entry of the maker by the model's
    own name, because gateways offer the same models. Unknown models have the defaults.
    """
    entry = own or _find_entry(model, provider)
    known = {name: getattr(entry, name) for name in ModelInfo.__struct_fields__} if entry else {}
    if (settings := config.models.get(model)) is not None:
        changes = {name: getattr(settings, name, None) for name in ModelInfo.__struct_fields__}
        known |= {name: value for name, value in changes.items() if value is not None}
        known["reasoning"] = known.get("reasoning", False) or settings.reasoning_effort is not None
    return ModelInfo(**known)


def _find_entry(model: str, provider: str) -> _Model | None:
    own = _catalog().hosts.get(provider) or _catalog().vendors.get(provider, {})
    if key := _find_name(model, own):
        return own[key]
    name = model.rpartition("/")[2]  # gateways write "maker/model"
    for spelling in dict.fromkeys((name, name.replace(".", "-"))):  # some write "claude-sonnet-4.5"
        for models in _catalog().vendors.values():
            if key := _find_name(spelling, models):
                return models[key]
    return None


def _find_name(name: str, models: dict[str, _Model]) -> str | None:
    """Return the longest catalog name that `name` is an edition of."""
    if name in models:
        return name
    matches = [key for key in models if name.startswith(key) and _EDITION.fullmatch(name[len(key) :])]
    return max(matches, key=len, default=None)
