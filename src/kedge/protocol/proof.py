"""How a server proves over TCP that it knows the token, before a client sends it anything of value (P16).

The client sends a random nonce; the server answers with an HMAC, keyed by the token, over the nonce and the address
that was connected to. The address keeps a process that listens elsewhere from passing on the answer as its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH = "/v1/proof"
NONCE_HEX = 64  # 32 random bytes
# What the proof reveals can be used to try out tokens without asking the server: a token must be too long for that.
MIN_TOKEN_CHARS = 32
_LABEL = "kedge-server-proof-1"  # so that the answer is good for nothing else


def proof_of(token: str, nonce: str, address: str) -> str:
    text = "\0".join((_LABEL, nonce, address))
    return hmac.new(token.encode(), text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_same(proof: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def address_text(name: Sequence[Any]) -> str:
    """The name of a TCP socket as both ends write it: `127.0.0.1:7171`, `[::1]:7171`."""
    host = str(name[0]).partition("%")[0].lower()
    mapped = host.removeprefix("::ffff:")
    if "." in mapped:
        host = mapped  # an IPv4 client of a socket for both
    return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
