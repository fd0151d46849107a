"""Makes the pictures beside it: `python docs/pictures/make.py [DIRECTORY]`, with the environment of `dev.py`."""
# ruff: noqa: INP001 - a script, not a package

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.docs.pictures import KEPT, make

asyncio.run(make(Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT))
