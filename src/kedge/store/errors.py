"""Errors of the store that are not sent to clients.

StoreOpenError          the store cannot be opened; nothing in the directory was changed
├── StoreInUse          another process owns the directory
├── StoreDamaged        the file is not a sound database
└── StoreTooNew         a newer Kedge wrote it
ClaimLost               a turn that was canceled, ended or replaced tried to write
"""

from __future__ import annotations


class StoreOpenError(Exception):
    """The message is one line for a person: what is wrong with the data directory, and what to do."""


class StoreInUse(StoreOpenError):
    def __init__(self, directory: str, owner: str) -> None:
        super().__init__(
            f"{directory} is in use by {owner}; stop it (kedge serve --stop), or choose another data directory"
        )
        self.owner = owner


class StoreDamaged(StoreOpenError):
    pass


class StoreTooNew(StoreOpenError):
    pass


class ClaimLost(Exception):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"the turn of run {run_id} may not write any more")
        self.run_id = run_id
