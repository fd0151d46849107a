"""The client's side of a server's proof over TCP: the request, and the check of the answer. Does no I/O."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from kedge.client.environment import ServerLocation
from kedge.client.errors import Dropped, NotAllowed
from kedge.http import http1
from kedge.protocol import proof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ANSWER_BYTES = 64 * 1024


class Challenge:
    """Send `request` on a new connection, then `feed` the answer until it returns True."""

    def __init__(self, location: ServerLocation, peer: Sequence[Any]) -> None:
        """`peer` is the address at the other end of the connection. Raises `NotAllowed` if there is no token."""
        self._server = location.address
        if not location.token:
            raise NotAllowed(f"No token for {self._server}. Pass the server's token with --token-file or KEDGE_TOKEN.")
        self._token = location.token
        self._address = proof.format_address(peer)
        self._nonce = os.urandom(proof.NONCE_HEX // 2).hex()
        self._parser = http1.ResponseParser()
        self._body = b""
        self._left_bytes = MAX_ANSWER_BYTES

    @property
    def request(self) -> bytes:
        host = str(self._server).removeprefix("tcp://")
        target = f"{proof.PATH}?nonce={self._nonce}&address={self._address}"
        return http1.build_request("GET", target, {"Host": host})

    def feed(self, data: bytes) -> bool:
        """Return whether the proof is complete and right. Raises `NotAllowed`, or `Dropped` if a retry may help."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise Dropped("the answer did not come from a Kedge server")
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
            raise Dropped(f"the server answered with status {status}")
        if status == 403:
            raise NotAllowed(
                f"The server at {self._server} does not accept that host name. "
                "Start it with --allow-host NAME, or use its address."
            )
        if status in (401, 404) and "kedge-version" in self._parser.headers:
            raise NotAllowed(f"The server at {self._server} is too old to prove that it has your token. Update it.")
        answer = _decode(self._body) if status == 200 else {}
        given, signed = str(answer.get("proof")), str(answer.get("address"))
        if proof.is_same(given, proof.compute_proof(self._token, self._nonce, self._address)):
            return
        if proof.is_same(given, proof.compute_proof(self._token, self._nonce, signed)):
            raise NotAllowed(
                f"Your server is at {signed}, not at {self._server}: something in between forwards connections. "
                f"Connect to it directly, or start it with --allow-host {self._address}."
            )
        raise NotAllowed(
            f"The server at {self._server} does not have your token, so nothing was sent to it. Check --host, "
            "and pass the server's token with --token-file or KEDGE_TOKEN."
        )


def _decode(body: bytes) -> dict[str, Any]:
    try:
        match json.loads(body):
            case {"proof": str(given), "address": str(address)}:
                return {"proof": given, "address": address}
            case _:
                return {}
    except (ValueError, RecursionError):
        return {}
