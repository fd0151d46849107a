"""Check a data directory for `kedge doctor` without changing it.

`python -m kedge.store.sqlite.diagnosis DATA_DIR` prints one line of JSON, `[is_ok, sentence]`, or nothing if there is
nothing to report.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kedge.store.errors import StoreOpenError
from kedge.store.sqlite.database import DATABASE, inspect, load_migrations


def diagnose(directory: Path) -> tuple[bool, str] | None:
    """Return whether the database is fine and a sentence about it, or None if there is nothing to say."""
    path = directory / DATABASE
    schema = load_migrations()
    try:
        applied = inspect(path, schema)
    except StoreOpenError as error:
        return False, str(error)
    due = [migration.name for migration in schema if migration.name not in applied]
    if not applied or not due:
        return None
    copy = f"{path.name}.before-{due[0]}"
    return True, f"{path} was written by an older Kedge: the next server upgrades it and keeps a copy ({copy})"


if __name__ == "__main__" and (found := diagnose(Path(sys.argv[1]))) is not None:
    sys.stdout.write(f"{json.dumps(found)}\n")
