"""What can go wrong for a client. Each error's text is one line that says what to do.

ClientError
├── Dropped         the connection broke or fell silent; coming back may help
├── InDoubt         it broke during something that must not be done twice
├── Unreachable     nothing answered for as long as we were ready to wait
├── SpawnFailed     a server could not be started
│   └── SpawnRefused    for a reason that its user can mend: the data directory, the file in it
├── NotAllowed      the server does not let us in
├── NotUnderstood   the server answered with something else than this client knows
└── Refused         the server answered with an error: `status`, `code`, `message`
"""

from __future__ import annotations


class ClientError(Exception):
    """The root: whatever a client raises on purpose."""


class Dropped(ClientError):
    pass


class InDoubt(ClientError):
    def __init__(self, error: Dropped) -> None:
        super().__init__(f"{error}; whether it was done is not known: look before you try it again")


class Unreachable(ClientError):
    pass


class SpawnFailed(ClientError):
    pass


class SpawnRefused(SpawnFailed):
    pass


class NotAllowed(ClientError):
    pass


class NotUnderstood(ClientError):
    pass


class Refused(ClientError):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
