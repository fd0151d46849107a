"""The client's side of the server's proof over TCP: what to send, and whether the answer will do. Does no I/O."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from kedge.client import http1
from kedge.client.errors import Dropped, NotAllowed
from kedge.client.server_location import Endpoint
from kedge.protocol import proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ANSWER_BYTES = 64 * 1024


class Challenge:
    """Send `request` on a new connection, then `feed` it what comes until it returns True."""

    def __init__(self, endpoint: Endpoint, peer: Sequence[Any]) -> None:
        """`peer`: the address at the other end of the connection. Raises `NotAllowed` if there is no token."""
        self._where = endpoint.address
        if not endpoint.token:
            raise NotAllowed(f"there is no token for {self._where}; give the server's with --token-file or KEDGE_TOKEN")
        self._token = endpoint.token
        self._address = proof.address_text(peer)
        self._nonce = os.urandom(proof.NONCE_HEX // 2).hex()
        self._parser = http1.ResponseParser()
        self._body = b""
        self._left_bytes = MAX_ANSWER_BYTES

    @property
    def request(self) -> bytes:
        host = str(self._where).removeprefix("tcp://")
        target = f"{proof.PATH}?nonce={self._nonce}&address={self._address}"
        return http1.request("GET", target, {"Host": host})

    def feed(self, data: bytes) -> bool:
        """Whether the proof is complete and right. Raises `NotAllowed`, or `Dropped` when it may be had later."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise Dropped("what answers there is no Kedge server")
        if data:
            self._body += self._parser.feed(data)
        else:
            self._parser.eof()
        if not self._parser.is_complete:
            return False
        self._check()
        if not self._parser.is_reusable:
            raise Dropped("the server closed the connection")
        return True

    def _check(self) -> None:
        status = self._parser.status
        if status in (429, 503):
            raise Dropped(f"the server answered {status}")
        if status == 403:
            raise NotAllowed(
                f"the server at {self._where} does not answer to that name; "
                "start it with --allow-host NAME, or use its address"
            )
        if status in (401, 404) and "kedge-version" in self._parser.headers:
            raise NotAllowed(f"the server at {self._where} is too old to prove that it has your token; update it")
        answer = _decoded(self._body) if status == 200 else {}
        given, signed = str(answer.get("proof")), str(answer.get("address"))
        if proof.is_same(given, proof.proof_of(self._token, self._nonce, self._address)):
            return
        if proof.is_same(given, proof.proof_of(self._token, self._nonce, signed)):
            raise NotAllowed(
                f"your server is not at {self._where} itself but at {signed}, and something in between passes it on; "
                f"connect to it directly, or start it with --allow-host {self._address}"
            )
        raise NotAllowed(
            f"what answers at {self._where} does not have your token, so nothing was sent to it; check --host, "
            "and give the server's token with --token-file or KEDGE_TOKEN"
        )


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        match json.loads(body):
            case {"proof": str(given), "address": str(address)}:
                return {"proof": given, "address": address}
            case _:
                return {}
    except (ValueError, RecursionError):
        return {}
