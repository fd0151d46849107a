"""Errors of requests that do not reach a handler, and the HTTP status of every error.

KedgeError (protocol/errors.py)
├── BadRequest       400 malformed          ├── NotAllowed       405 method_not_allowed
├── Unauthorized     401 unauthorized       ├── BodyTooLarge     413 body_too_large
├── Forbidden        403 forbidden_…        └── NotJson          415 not_json
│   └── AgentProcess 403 agent_process
"""

from __future__ import annotations

from collections.abc import Mapping

from kedge.protocol.bounds import MAX_BODY_BYTES
from kedge.protocol.errors import Conflict, Invalid, KedgeError, NotFound, TooLarge, TooMany, Unavailable


class BadRequest(KedgeError):
    def __init__(self, message: str) -> None:
        super().__init__("malformed", message)


class Unauthorized(KedgeError):
    def __init__(self) -> None:
        super().__init__("unauthorized", "The bearer token is missing or wrong.")


class Forbidden(KedgeError):
    pass


class AgentProcess(Forbidden):
    def __init__(self) -> None:
        super().__init__(
            "agent_process",
            "Commands started by the agent may only read from the server. Run this in a terminal of your own, "
            "or type ! before it in kedge.",
        )


class NotAllowed(KedgeError):
    def __init__(self, method: str, allowed: list[str]) -> None:
        super().__init__("method_not_allowed", f"{method} is not allowed here. Allowed: {', '.join(allowed)}.")
        self.allowed = allowed


class NoRoute(NotFound):
    def __init__(self, path: str) -> None:
        super().__init__("route", path)


class BodyTooLarge(TooLarge):
    """The rest of the body is not read: the connection is closed."""

    def __init__(self) -> None:
        super().__init__("body_too_large", f"The body is over {MAX_BODY_BYTES >> 20} MiB. Put large data into files.")


class NotJson(KedgeError):
    def __init__(self) -> None:
        super().__init__("not_json", "Send JSON with the header Content-Type: application/json.")


_STATUS: dict[type[KedgeError], int] = {
    BadRequest: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    NotAllowed: 405,
    Conflict: 409,
    TooLarge: 413,
    NotJson: 415,
    Invalid: 422,
    TooMany: 429,
    Unavailable: 503,
}
RETRY_AFTER_S = 5


def status_of(error: KedgeError) -> int:
    return next(status for family, status in _STATUS.items() if isinstance(error, family))


def headers_of(error: KedgeError) -> Mapping[str, str]:
    match error:
        case Unauthorized():
            return {"www-authenticate": "Bearer"}
        case NotAllowed():
            return {"allow": ", ".join(error.allowed)}
        case BodyTooLarge():
            return {"connection": "close"}
        case Unavailable() | TooMany():
            return {"retry-after": str(RETRY_AFTER_S)}
        case _:
            return {}
