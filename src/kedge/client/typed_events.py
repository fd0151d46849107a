"""Events as structs of `kedge.protocol`, for `AsyncClient` and the terminal interface: each payload is decoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kedge.protocol.events import CONTROL_TYPES, PAYLOAD_TYPES, Envelope, decode_envelope

if TYPE_CHECKING:
    from kedge.client.event_cursor import Decoded

KNOWN_TYPES = CONTROL_TYPES.keys() | PAYLOAD_TYPES.keys()  # a newer server may send others: ignore them


def decode_to_envelope(data: bytes) -> Decoded:
    """`EventCursor`'s decoder for an `Envelope`, which `to_event` makes an `Event` of. Raises ValueError."""
    try:
        envelope: Envelope = decode_envelope(data)
        is_control = envelope.type in CONTROL_TYPES
        payload = msgspec.json.decode(envelope.payload, type=dict[str, Any]) if is_control else {}
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    return envelope.type, envelope.seq, payload, envelope
