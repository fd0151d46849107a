"""`python3 dev.py mutants [--seed N] [--count N] [--only PACKAGE ...] [--jobs N]`: do the tests notice a mistake?

Each mistake is small: a comparison flipped, a call dropped, a number off by one. What no test noticed is printed with
its diff: write a test of behavior that does, or, if nobody could notice, its reason in tests/mutants/equivalent.py.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from tests.mutants.running import TESTS, Judged, Mutant, copied_tree, judge, sample, stop


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py mutants", description="Plant mistakes; the tests must notice them.")
    parser.add_argument("--seed", type=int, default=None, help="of an earlier sample; otherwise a new one is drawn")
    parser.add_argument("--count", type=int, default=20, help="how many mistakes (20)")
    parser.add_argument("--only", action="append", choices=sorted(TESTS), help="the package; can be given again")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time, each in a copy of the tree (1)")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    packages: list[str] = options.only or list(TESTS)
    print(f"{options.count} mutants of {', '.join(packages)}, seed {seed}", flush=True)
    judged = list(_judged(sample(seed, options.count, packages), max(1, options.jobs)))
    for each in judged:
        if each.verdict in ("survived", "unfinished"):
            print(f"\n{each.verdict}: {each.mutant.what}\n{each.mutant.diff}\n{each.why}".rstrip())
    return _report(judged, seed)


def _judged(mutants: Sequence[Mutant], jobs: int) -> Iterator[Judged]:
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def work(mutant: Mutant) -> Judged:
        tree = trees.get()
        try:
            return judge(mutant, tree)
        finally:
            trees.put(tree)

    with ExitStack() as stack:
        for _ in range(jobs):
            trees.put(stack.enter_context(copied_tree()))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        try:
            for done in as_completed([pool.submit(work, mutant) for mutant in mutants]):
                mutant, verdict, why, took_s = done.result()
                about = why.splitlines()[-1][:90] if why else ""
                print(f"{verdict:10} {took_s:6.1f} s  {mutant.path}:{mutant.line} {mutant.what}  {about}", flush=True)
                yield done.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            raise


def _report(judged: Sequence[Judged], seed: int) -> int:
    counts = Counter(each.verdict for each in judged)
    valid = counts["killed"] + counts["survived"]
    score = 100 * counts["killed"] / valid if valid else 100.0
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"\nseed {seed}: {told}; {score:.1f} % of {valid} valid ones were noticed")
    return int(bool(counts["survived"] or counts["unfinished"]))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
