"""`python3 dev.py soak [--minutes 1|10|60] [--seed N]`: a mixed load, and every promise checked over all of it."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

from tests.soak.forms import FORMS
from tests.soak.report import judge
from tests.soak.soak import soak


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py soak", description="A mixed load on a server that is killed.")
    parser.add_argument("--minutes", type=int, choices=sorted(FORMS), default=1)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier soak; otherwise a new one is drawn")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"soak of {options.minutes} min, seed {seed}", flush=True)
    began = time.monotonic()

    def progress(what: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {what}", flush=True)

    judgement = judge(asyncio.run(soak(FORMS[options.minutes], seed, progress)))
    print(judgement.text)
    if judgement.wrong:
        print(f"\nrepeat it with: python3 dev.py soak --minutes {options.minutes} --seed {seed}")
    return int(bool(judgement.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
