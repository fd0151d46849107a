"""Providers of installed packages: an entry point of the group `kedge.providers` gives data, and may give a wire.

Packages are looked for when a provider's name is not known, and when models are listed: reading what is installed takes
longer than all the rest of choosing a model. Whatever is wrong with a package becomes one line that names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, cast

import msgspec

from kedge.config.schema import WireName
from kedge.models.errors import ConfigError, ModelError, Refused
from kedge.models.providers import BUILT_IN, LOCAL, Provider, check_base_url
from kedge.models.values import Delta, Endpoint, HttpRequest, ModelInfo, StepRequest
from kedge.models.wires import chat
from kedge.models.wires.decoding import SseEvent
from kedge.models.wires.encoded_cache import Said
from kedge.models.wires.registry import Stream, Wire
from kedge.models.wires.requests import parse_listing

GROUP = "kedge.providers"
_RESERVED = frozenset({LOCAL, *(provider.id for provider in BUILT_IN)})


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the entry point names: an object of these fields, as a `dict`. All are optional."""

    title: str = ""
    wire: WireName = "chat"
    base_url: str | None = None
    is_local: bool = False
    key_variables: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    large: str = ""
    small: str = ""
    models: dict[str, ModelInfo] = {}


class Extension(NamedTuple):
    provider: Provider
    package: str  # its name and version, for people
    prepare_request: Callable[[Endpoint, StepRequest], HttpRequest] | None
    stream: Callable[[Endpoint, StepRequest], Stream] | None
    prepare_listing: Callable[[Endpoint], HttpRequest] | None
    parse_listing: Callable[[bytes], list[str]] | None


class _Unfit(Exception):
    """Why what a package gives is of no use."""


class Broken(NamedTuple):
    provider: str
    problem: str


def provider(name: str) -> Provider | None:
    """The provider that an installed package gives this name. Raises `ConfigError` where the package is no good."""
    found = _installed().get(name)
    if isinstance(found, Broken):
        raise ConfigError("bad_config", found.problem)
    return found.provider if found else None


def everything() -> Mapping[str, Provider | Broken]:
    """All of them, with those that cannot be used."""
    return {name: found if isinstance(found, Broken) else found.provider for name, found in _installed().items()}


def with_packages(known: Mapping[str, Provider]) -> dict[str, Provider]:
    """Providers by their names, and those of packages that can be used."""
    usable = {name: each for name, each in everything().items() if isinstance(each, Provider)}
    return {**known, **{name: each for name, each in usable.items() if name not in known}}


def forget() -> None:
    """Look again at what is installed."""
    _installed.cache_clear()


def wire(name: str) -> Wire:
    """The wire of the package that has the provider of that name. A package's mistake fails the step that met it."""
    own = _installed()[name]
    assert isinstance(own, Extension), "an endpoint has the wire of a package that was there"
    prepare, read = own.prepare_request, own.stream
    assert prepare is not None
    assert read is not None

    def prepared(endpoint: Endpoint, request: StepRequest, _: Said | None) -> HttpRequest:
        with _told_of(own):
            made = prepare(endpoint, request)
            if not isinstance(made, HttpRequest):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"prepare_request gave a {type(made).__name__}, not an HttpRequest")
            return made

    def stream(endpoint: Endpoint, request: StepRequest) -> Stream:
        with _told_of(own):
            return _Guarded(own, read(endpoint, request))

    def listing(endpoint: Endpoint) -> HttpRequest:
        with _told_of(own):
            return (own.prepare_listing or chat.prepare_listing)(endpoint)

    def names(data: bytes) -> list[str]:
        with _told_of(own):
            return (own.parse_listing or parse_listing)(data)

    return Wire(prepared, stream, listing, names, chat.encode)


class _Guarded:
    def __init__(self, own: Extension, stream: Stream) -> None:
        self._own = own
        self._stream = stream

    def parse_event(self, event: SseEvent) -> list[Delta]:
        with _told_of(self._own):
            return self._stream.parse_event(event)


@contextlib.contextmanager
def _told_of(own: Extension) -> Generator[None, None, None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        problem = f"the package {own.package} failed: {type(error).__name__}: {_one_line(error)}"
        raise Refused("bad_response", problem) from error


@cache
def _installed() -> dict[str, Extension | Broken]:
    """Once for each server: what is installed later is found by the next one."""
    found: dict[str, Extension | Broken] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        found.setdefault(entry.name, _loaded(entry))
    return found


def _loaded(entry: EntryPoint) -> Extension | Broken:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        if entry.name in _RESERVED:
            raise _Unfit(f"the name {entry.name!r} is taken; give it another one")
        return _made(entry.name, package, entry.load())
    # The boundary: any error of a package, and an exit that it wants, stays its own.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        is_ours = isinstance(error, _Unfit | ModelError)
        problem = _one_line(error) if is_ours else f"{type(error).__name__}: {_one_line(error)}"
        return Broken(entry.name, f"provider {entry.name!r} of the package {package} cannot be used: {problem}")


def _made(name: str, package: str, given: object) -> Extension:
    if not isinstance(given, Mapping):
        raise _Unfit(f"its entry point names a {type(given).__name__}, not a dict")
    fields = dict(cast("Mapping[str, Any]", given))
    calls = {each: fields.pop(each, None) for each in Extension._fields[2:]}
    for each, call in calls.items():
        if call is not None and not callable(call):
            raise _Unfit(f"{each} is not a function")
    if (calls["prepare_request"] is None) != (calls["stream"] is None):
        raise _Unfit("a wire of its own needs both prepare_request and stream")
    try:
        data = msgspec.convert(fields, Data)
    except msgspec.ValidationError as error:
        raise _Unfit(str(error)) from error
    own = name if calls["stream"] is not None else ""
    known = {each: getattr(data, each) for each in Data.__struct_fields__}
    made = Provider(id=name, extension=own, **known)
    if data.base_url is not None:
        made = msgspec.structs.replace(made, base_url=check_base_url(data.base_url, "base_url", made))
    return Extension(made, package, **calls)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or "no reason given"
