"""The configuration of this directory, and the model that a run from this shell would get: tried, with its key."""

from __future__ import annotations

import os

from kedge.cli.doctor_child import findings
from kedge.protocol.errors import KedgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor_child import Finding
    from kedge.config.load import Loaded

PATIENCE_S = 60.0  # a busy machine takes seconds to begin; then a key is looked up (10 s) and tried (10 s)


def configuration(directory: str) -> Iterator[Finding]:
    """What keeps it from being used; else what a repository says in vain."""
    try:
        loaded = _load(directory)
    except KedgeError as error:
        yield False, f"the configuration cannot be used: {error.message}"
        return
    for each in loaded.ignored:
        what = f"{each.file}:{each.line}: {each.key} is ignored: it {each.why}"
        yield None, f"{what}; if you trust who wrote it: kedge config trust"


def model(data_dir: str, directory: str, *, is_offline: bool) -> Iterator[Finding]:
    words = [data_dir, directory, *(["--offline"] if is_offline else [])]
    yield from findings("kedge.models.selection.diagnosis", *words, limit_s=PATIENCE_S, about="the model")


def _load(directory: str) -> Loaded:
    from pathlib import Path

    from kedge.config.load import Loader

    return Loader().load(Path(directory), os.environ)
