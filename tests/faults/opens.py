"""Opens a store and says, in a line of JSON, what happened: `python -m tests.faults.opens [OPTION …] DIRECTORY`.

With --nobody it first becomes an ordinary user, if it may; with --hold it keeps the store until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from kedge.store.errors import StoreOpenError
from kedge.store.sqlite import database
from kedge.store.sqlite.store import SqliteStore

NOBODY = 65534


def main(options: set[str], directory: Path) -> None:
    schema = database.load_migrations()  # while we may read what is installed, wherever that is
    if "--nobody" in options and os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        store = SqliteStore.open(directory, schema=schema)
    except StoreOpenError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        return
    print(json.dumps({"opened": os.getpid()}), flush=True)
    if "--hold" in options:
        sys.stdin.read()
    store.abandon()


if __name__ == "__main__":
    main(set(sys.argv[1:-1]), Path(sys.argv[-1]))
