"""Providers by name: the built-in ones, those of the configuration, and those of installed packages.

Entry points of the group `kedge.providers` give a provider's data, and may give a wire. Packages are loaded only for a
name that is not known and when models are listed: reading the installed metadata takes longer than the rest of
selecting a model. A broken package becomes a one-line error that names it.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Generator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from kedge.config.schema import Config, WireName
from kedge.models.errors import ConfigError, ModelError, Refused
from kedge.models.providers import BUILT_IN, LOCAL, Provider, check_base_url
from kedge.models.values import Delta, Endpoint, HttpRequest, ModelInfo, StepRequest
from kedge.models.wires import chat
from kedge.models.wires.decoding import SseEvent
from kedge.models.wires.registry import Stream, Wire
from kedge.models.wires.requests import EncodedCache, parse_listing
from kedge.protocol.text_safety import shorten

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def configured_providers(config: Config) -> dict[str, Provider]:
    """Return the providers by id, built-in ones first. Those of packages are included if they are configured."""
    known = {provider.id: provider for provider in BUILT_IN}
    for name, settings in config.providers.items():
        try:
            provider = known.get(name) or _find_installed(name) or Provider(id=name)
        except ConfigError:
            continue  # its package is broken: `find_provider` raises for a run that names it
        if settings.wire:
            provider = msgspec.structs.replace(provider, wire=settings.wire, wire_elsewhere=None, extension="")
        known[name] = msgspec.structs.replace(provider, config=settings)
    return known


def find_provider(name: str, config: Config) -> Provider | None:
    """Raise `ConfigError` if the provider's package is broken."""
    return configured_providers(config).get(name) or _find_installed(name)


def require_provider(name: str, config: Config, model: str) -> Provider:
    """Return the provider, or raise `ConfigError` with a hint; `model` is the name that the user gave."""
    if (provider := find_provider(name, config)) is not None:
        return provider
    known = configured_providers(config)
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        "bad_config",
        f"There is no provider {name!r}. {guess}Known providers: {', '.join(sorted([*known, LOCAL]))}."
        f" For a server at OPENAI_BASE_URL use openai/{model}",
    )


GROUP = "kedge.providers"
_RESERVED = frozenset({LOCAL, *(provider.id for provider in BUILT_IN)})


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of the `dict` that the entry point names. All are optional."""

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
    package: str  # name and version, for error messages
    prepare_request: Callable[[Endpoint, StepRequest], HttpRequest] | None
    stream: Callable[[Endpoint, StepRequest], Stream] | None
    prepare_listing: Callable[[Endpoint], HttpRequest] | None
    parse_listing: Callable[[bytes], list[str]] | None


class _InvalidPackage(Exception):
    """A package cannot be used. The message gives the reason."""


class BrokenPackage(NamedTuple):
    provider: str
    problem: str


def _find_installed(name: str) -> Provider | None:
    """Return the provider of an installed package. Raises `ConfigError` if the package is broken."""
    found = _load_installed().get(name)
    if isinstance(found, BrokenPackage):
        raise ConfigError("bad_config", found.problem)
    return found.provider if found else None


def load_all() -> Mapping[str, Provider | BrokenPackage]:
    """Return all installed providers by name, and the broken ones."""
    return {
        name: found if isinstance(found, BrokenPackage) else found.provider for name, found in _load_installed().items()
    }


def add_packages(known: Mapping[str, Provider]) -> dict[str, Provider]:
    """Return `known` and the working providers of packages."""
    usable = {name: each for name, each in load_all().items() if isinstance(each, Provider)}
    return {**known, **{name: each for name, each in usable.items() if name not in known}}


def reload() -> None:
    """Read the installed packages again."""
    _load_installed.cache_clear()


def make_wire(name: str) -> Wire:
    """Return the wire of the package that registers this provider. An exception in it fails only the current step."""
    own = _load_installed()[name]
    assert isinstance(own, Extension), "an endpoint has the wire of a package that was there"
    prepare, open_stream = own.prepare_request, own.stream
    assert prepare is not None
    assert open_stream is not None

    def prepare_request(endpoint: Endpoint, request: StepRequest, _: EncodedCache | None) -> HttpRequest:
        with _name_package(own):
            prepared = prepare(endpoint, request)
            if not isinstance(prepared, HttpRequest):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"prepare_request returned a {type(prepared).__name__}, not an HttpRequest")
            return prepared

    def stream(endpoint: Endpoint, request: StepRequest) -> Stream:
        with _name_package(own):
            return _GuardedStream(own, open_stream(endpoint, request))

    def prepare_listing(endpoint: Endpoint) -> HttpRequest:
        with _name_package(own):
            return (own.prepare_listing or chat.prepare_listing)(endpoint)

    def parse_names(data: bytes) -> list[str]:
        with _name_package(own):
            return (own.parse_listing or parse_listing)(data)

    return Wire(prepare_request, stream, prepare_listing, parse_names, chat.encode)


class _GuardedStream:
    def __init__(self, own: Extension, stream: Stream) -> None:
        self._own = own
        self._stream = stream

    def parse_event(self, event: SseEvent) -> list[Delta]:
        with _name_package(self._own):
            return self._stream.parse_event(event)


@contextlib.contextmanager
def _name_package(own: Extension) -> Generator[None, None, None]:
    """Turn exceptions of the package into a `Refused` that names it."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        problem = f"The package {own.package} failed: {type(error).__name__}: {_explain(error)}"
        raise Refused("bad_response", problem) from error


@cache
def _load_installed() -> dict[str, Extension | BrokenPackage]:
    """Cached: packages that are installed later are found by the next server."""
    from importlib.metadata import entry_points  # late: few runs need it

    found: dict[str, Extension | BrokenPackage] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        found.setdefault(entry.name, _load(entry))
    return found


def _load(entry: EntryPoint) -> Extension | BrokenPackage:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        if entry.name in _RESERVED:
            raise _InvalidPackage(f"the name {entry.name!r} is taken; use another one")
        return _make_extension(entry.name, package, entry.load())
    # Any exception of a package, even SystemExit, makes only this package unusable.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        is_explained = isinstance(error, _InvalidPackage | ModelError)
        problem = _explain(error) if is_explained else f"{type(error).__name__}: {_explain(error)}"
        return BrokenPackage(entry.name, f"Provider {entry.name!r} of the package {package} cannot be used: {problem}")


def _make_extension(name: str, package: str, given: object) -> Extension:
    if not isinstance(given, Mapping):
        raise _InvalidPackage(f"its entry point names a {type(given).__name__}, not a dict")
    fields = dict(cast("Mapping[str, Any]", given))
    calls = {each: fields.pop(each, None) for each in Extension._fields[2:]}
    for each, call in calls.items():
        if call is not None and not callable(call):
            raise _InvalidPackage(f"{each} is not a function")
    if (calls["prepare_request"] is None) != (calls["stream"] is None):
        raise _InvalidPackage("a wire of its own needs both prepare_request and stream")
    try:
        data = msgspec.convert(fields, Data)
    except msgspec.ValidationError as error:
        raise _InvalidPackage(str(error)) from error
    own = name if calls["stream"] is not None else ""
    known = {each: getattr(data, each) for each in Data.__struct_fields__}
    made = Provider(id=name, extension=own, **known)
    if data.base_url is not None:
        made = msgspec.structs.replace(made, base_url=check_base_url(data.base_url, "base_url", made))
    return Extension(made, package, **calls)


def _explain(error: BaseException) -> str:
    return shorten(str(error), 300) or "no reason given"
