"""The catalog of known models: the one of this release, and what `kedge models update` stored in the data directory.

Only facts about models of known providers are in it, no addresses and no keys, because an update comes from elsewhere.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.models.values import ModelInfo

UPDATE_FILE = "catalog.json"  # in the data directory
MAX_BYTES = 16 * 1024 * 1024
MAX_MODELS = 10_000
MODEL_NAME = re.compile(r"[~A-Za-z0-9][A-Za-z0-9._:@/+-]{0,199}")
_log = logging.getLogger(__name__)

Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Price = Annotated[float, Meta(ge=0, le=100_000)]
Factor = Annotated[float, Meta(ge=1, le=100)]


class CatalogModel(ModelInfo, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A catalog entry; unknown fields and senseless figures are errors."""

    context_window: Tokens | None = None
    max_output_tokens: Tokens | None = None
    input_price: Price | None = None
    output_price: Price | None = None
    cache_read_price: Price | None = None
    cache_write_price: Price | None = None
    long_prompt_tokens: Tokens | None = None
    long_input_factor: Factor = 1.0
    long_output_factor: Factor = 1.0


Models = dict[str, dict[str, CatalogModel]]


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models by maker (`vendors`), which gateways offer too, and by `hosts`, whose names and prices are only theirs."""

    date: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    about: list[str] = []
    vendors: Models = {}
    hosts: Models = {}


class CatalogUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored file."""

    source: str  # address or file, for people
    stored_on: str  # date
    catalog: Catalog


# Built once: two threads may be the first (see `config.load`).
decode_catalog = msgspec.json.Decoder(Catalog).decode
_decode_update = msgspec.json.Decoder(CatalogUpdate).decode


@cache
def built_in() -> Catalog:
    return decode_catalog((Path(__file__).parent / "catalog.json").read_bytes())


class _UpdateFile:
    """The update of this process's data directory, read again when its file changes."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.update: CatalogUpdate | None = None
        self.problem = ""  # why the file is ignored
        self._stat: tuple[int, int, int] | None = None
        self._merged: Catalog | None = None

    def refresh(self) -> None:
        stat = _identify(self.path)
        if stat == self._stat:
            return
        self._stat, self._merged, self.update, self.problem = stat, None, None, ""
        if self.path is None or stat is None:
            return
        try:
            self.update = read_update(self.path)
        except (OSError, ValueError) as error:
            self.problem = f"{self.path} is ignored: {error}; run kedge models update, or kedge models update --reset"
            _log.warning(self.problem)

    def merged(self) -> Catalog:
        if self.update is None:
            return built_in()
        if self._merged is None:
            self._merged = merge(built_in(), self.update.catalog)
        return self._merged


_file = _UpdateFile()


def use_data_dir(data_dir: Path) -> None:
    """Use the update that is stored in this data directory, if any."""
    _file.path = data_dir / UPDATE_FILE
    _file.refresh()


def refresh() -> None:
    """Notice an update that was stored or removed. Costs one `stat`."""
    _file.refresh()


def current() -> Catalog:
    return _file.merged()


def update_problem() -> str:
    """Return why the stored update is ignored, in one line; empty if it is not."""
    return _file.problem


def describe_update() -> str | None:
    """Return where the update in use comes from, for people; None if there is none."""
    found = _file.update
    return None if found is None else f"from {found.source}, stored on {found.stored_on}"


def read_update(path: Path) -> CatalogUpdate:
    """Raises OSError, or ValueError with the reason if the file cannot be used."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is too large")
    try:
        update = _decode_update(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise ValueError(f"it is not a catalog ({error})") from error
    check_models(update.catalog)
    return update


def check_models(catalog: Catalog) -> None:
    """Raise ValueError for names that no model has, too many models, and properties that no update may set."""
    entries = [(name, model) for models in _all_models(catalog) for name, model in models.items()]
    if len(entries) > MAX_MODELS:
        raise ValueError(f"it has more than {MAX_MODELS} models")
    for name, model in entries:
        if not MODEL_NAME.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is not a name of a model")
        if model.is_tiny:
            raise ValueError(f"{name}: is_tiny cannot be set here")
        if (model.input_price is None) != (model.output_price is None):
            raise ValueError(f"{name} has only one of input_price and output_price")


def merge(own: Catalog, update: Catalog) -> Catalog:
    """Add the update's models to our own. Of a model in both, the entry of the newer catalog is used."""
    first, second = (own, update) if own.date <= update.date else (update, own)

    def merge_group(name: str) -> Models:
        known: Models = getattr(own, name)
        older, newer = getattr(first, name), getattr(second, name)
        return {provider: {**older.get(provider, {}), **newer.get(provider, {})} for provider in known}

    return Catalog(date=second.date, about=own.about, vendors=merge_group("vendors"), hosts=merge_group("hosts"))


def _all_models(catalog: Catalog) -> list[dict[str, CatalogModel]]:
    return [*catalog.vendors.values(), *catalog.hosts.values()]


def _identify(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
