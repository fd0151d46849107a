"""The proof that a server knows the token, over TCP, before a client sends it anything of value (P16).

The client sends a random nonce; the server answers with an HMAC, keyed by the token, over the nonce and the address of
the connection. The address prevents a process that listens elsewhere from relaying the answer.
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
# With a proof, tokens can be tried without asking the server, so a token must be too long to guess.
MIN_TOKEN_CHARS = 32
_LABEL = "kedge-server-proof-1"  # makes the answer useless for any other purpose


def compute_proof(token: str, nonce: str, address: str) -> str:
    text = "\0".join((_LABEL, nonce, address))
    return hmac.new(token.encode(), text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_same(proof: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def format_address(name: Sequence[Any]) -> str:
    """The address of a TCP socket as both ends write it: `127.0.0.1:7171`, `[::1]:7171`."""
    host = str(name[0]).partition("%")[0].lower()
    mapped = host.removeprefix("::ffff:")
    if "." in mapped:
        host = mapped  # an IPv4 client of a dual-stack socket
    return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
