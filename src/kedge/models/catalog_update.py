"""`kedge models update`: read a catalog from an address or a file, check it, and tell what would change.

Runs in a process of its own: `python -m kedge.models.catalog_update DATA_DIR SOURCE` prints a JSON object: a `problem`,
or the `update` to store and what it changes. It stores nothing itself: a person has to agree first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from kedge.http.proxy import choose_connection, is_loopback
from kedge.models import catalog
from kedge.models.catalog import Catalog, CatalogModel, CatalogUpdate, Models
from kedge.models.errors import ModelError
from kedge.models.providers import find_known_name
from kedge.models.transport import Transport
from kedge.models.values import HttpRequest, ModelInfo
from kedge.models.wires.decoding import as_object
from kedge.version import VERSION

TIMEOUT_S = 60.0
CONNECT_S = 15.0
# Names of providers at models.dev, where they differ from ours.
_PROVIDERS = {
    "gemini": "google",
    "moonshot": "moonshotai",
    "qwen": "alibaba",
    "together": "togetherai",
    "fireworks": "fireworks-ai",
}
# Where a model that reasons also accepts an effort. Others reject the field, or some of their models do.
_WITH_EFFORT = ("openai", "anthropic", "gemini", "openrouter")
_FIGURES = (
    "context_window",
    "max_output_tokens",
    "input_price",
    "output_price",
    "cache_read_price",
    "cache_write_price",
)


class Refused(Exception):
    """The catalog cannot be used. The message says why."""


class _Cost(msgspec.Struct):
    input: catalog.Price
    output: catalog.Price
    cache_read: catalog.Price | None = None
    cache_write: catalog.Price | None = None


class _Limit(msgspec.Struct):
    context: catalog.Tokens
    output: int = 0


class _Modalities(msgspec.Struct, frozen=True):
    input: tuple[str, ...] = ("text",)
    output: tuple[str, ...] = ("text",)


class _Entry(msgspec.Struct):
    """A model of models.dev, as far as it matters here."""

    limit: _Limit
    cost: _Cost | None = None
    modalities: _Modalities = _Modalities()
    reasoning: bool = False
    tool_call: bool = False


def parse(data: bytes, today: str) -> tuple[Catalog, int]:
    """Return the catalog, and how many models were left out. Raises `Refused`.

    Accepts our own format, and that of models.dev. Providers that Kedge does not know are left out: a catalog brings
    facts about models, and never a new address.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise Refused("it is not a catalog")
    fields = cast("dict[str, Any]", document)
    try:
        read = _read_own(data) if {"vendors", "hosts"} & fields.keys() else _read_models_dev(fields, today)
        catalog.check_models(read[0])
    except ValueError as error:  # also those of msgspec
        raise Refused(str(error)) from error
    if not any(map(len, [*read[0].vendors.values(), *read[0].hosts.values()])):
        raise Refused("it has no model of a known provider")
    return read


def _read_own(data: bytes) -> tuple[Catalog, int]:
    found = catalog.decode_catalog(data)
    known = catalog.built_in()
    dropped = 0

    def keep_known(group: Models, ours: Models) -> Models:
        nonlocal dropped
        dropped += sum(len(models) for provider, models in group.items() if provider not in ours)
        return {provider: models for provider, models in group.items() if provider in ours}

    vendors, hosts = keep_known(found.vendors, known.vendors), keep_known(found.hosts, known.hosts)
    return Catalog(date=found.date, vendors=vendors, hosts=hosts), dropped


def _read_models_dev(document: Mapping[str, Any], today: str) -> tuple[Catalog, int]:
    providers = as_object(document.get("providers", document))
    known = catalog.built_in()
    dropped = 0

    def read_group(ours: Models) -> Models:
        nonlocal dropped
        group: Models = {}
        for provider, built_in in ours.items():
            entry = as_object(providers.get(_PROVIDERS.get(provider, provider)))
            for name, facts in as_object(entry.get("models")).items():
                try:
                    model = _convert(provider, name, facts, built_in)
                except msgspec.ValidationError:
                    model = None
                if model is None:
                    dropped += 1
                else:
                    group.setdefault(provider, {})[name] = model
        return group

    return Catalog(date=today, vendors=read_group(known.vendors), hosts=read_group(known.hosts)), dropped


def _convert(provider: str, name: str, facts: Any, built_in: Mapping[str, CatalogModel]) -> CatalogModel | None:
    """Return the entry of a model, or None if it is of no use: it writes no text, or is an edition of a known one."""
    entry = msgspec.convert(facts, _Entry)
    if not catalog.MODEL_NAME.fullmatch(name) or "text" not in entry.modalities.output:
        return None
    same = find_known_name(name, built_in)
    if same is not None and same != name:
        return None
    cost, limit = entry.cost, entry.limit
    figures: dict[str, Any] = {
        "context_window": limit.context,
        "max_output_tokens": limit.output if 0 < limit.output < limit.context else None,
        "input_price": cost and cost.input,
        "output_price": cost and cost.output,
        "cache_read_price": cost and cost.cache_read,
        "cache_write_price": cost and cost.cache_write,
    }
    if same is not None:  # what it can do is known better here
        return msgspec.structs.replace(
            built_in[same], **{key: each for key, each in figures.items() if each is not None}
        )
    has_effort = entry.reasoning and provider in _WITH_EFFORT
    return CatalogModel(
        **figures,
        images="image" in entry.modalities.input,
        tools=entry.tool_call,
        reasoning=has_effort,
        efforts=("low", "medium", "high") if has_effort else ModelInfo().efforts,
    )


def describe_changes(before: Catalog, after: Catalog) -> tuple[list[str], list[str]]:
    """Return the names of new models, and a line for each model whose facts change."""
    new: list[str] = []
    changed: list[str] = []
    groups = [(before.vendors, after.vendors), (before.hosts, after.hosts)]
    for provider, old, models in [(each, a.get(each, {}), b[each]) for a, b in groups for each in b]:
        for name, model in models.items():
            if name not in old:
                new.append(f"{provider}/{name}")
            elif facts := _compare(old[name], model):
                changed.append(f"{provider}/{name}: {', '.join(facts)}")
    return new, changed


def _compare(old: CatalogModel, new: CatalogModel) -> list[str]:
    names = [*_FIGURES, *(each for each in ModelInfo.__struct_fields__ if each not in _FIGURES)]
    return [
        f"{name} {_show(getattr(old, name))} → {_show(getattr(new, name))}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]


def _show(value: Any) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case float() | int():
            return f"{value:,}" if isinstance(value, int) else f"{value:g}"
        case tuple():
            return "/".join(map(str, cast("tuple[object, ...]", value)))
        case _:
            return str(value)


async def fetch(url: str, env: Mapping[str, str]) -> bytes:
    """Raises `Refused`."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise Refused("the address must not contain a name or a password")
    if parts.scheme != "https" and not is_loopback(url):
        raise Refused("the address must begin with https://")
    headers = {"User-Agent": f"kedge/{VERSION}", "Accept": "application/json", "Accept-Encoding": "identity"}
    transport = Transport(CONNECT_S, TIMEOUT_S)
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            transport.send(HttpRequest("GET", url, headers), choose_connection(url, env)) as response,
        ):
            if response.status != 200:
                moved = response.headers.get("location", "")
                hint = f"; it has moved to {moved}" if 300 <= response.status < 400 and moved else ""
                raise Refused(f"{parts.netloc} answered {response.status}{hint}")
            data = bytearray()
            async with contextlib.aclosing(response.chunks()) as chunks:
                async for chunk in chunks:
                    data += chunk
                    if len(data) > catalog.MAX_BYTES:
                        raise Refused(f"it is larger than {catalog.MAX_BYTES >> 20} MiB")
            return bytes(data)
    except TimeoutError:
        raise Refused(f"{parts.netloc} did not answer within {TIMEOUT_S:g} s") from None
    except ModelError as error:
        raise Refused(error.text) from error
    finally:
        transport.close()


def read_file(path: Path) -> bytes:
    """Raises `Refused`."""
    try:
        if path.stat().st_size > catalog.MAX_BYTES:
            raise Refused(f"it is larger than {catalog.MAX_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise Refused(error.strerror or str(error)) from error


def check(data_dir: Path, source: str, env: Mapping[str, str], today: str) -> dict[str, Any]:
    """Return what `main` prints."""
    is_url = "://" in source
    name = source.partition("?")[0] if is_url else source  # a query may contain a secret
    try:
        data = asyncio.run(fetch(source, env)) if is_url else read_file(Path(source))
        found, dropped = parse(data, today)
    except Refused as error:
        return {"problem": f"{name} cannot be used: {error}"}
    catalog.use_data_dir(data_dir)
    before = catalog.current()
    new, changed = describe_changes(before, catalog.merge(catalog.built_in(), found))
    update = CatalogUpdate(source=name, stored_on=today, catalog=found)
    return {"update": update, "date": found.date, "new": new, "changed": changed, "dropped": dropped}


def main() -> None:
    data_dir, source = sys.argv[1:3]
    result = check(Path(data_dir), source, os.environ, time.strftime("%Y-%m-%d"))
    sys.stdout.write(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
