"""`difflib.SequenceMatcher` with a bound on its work, which is quadratic and worse for texts made to be slow."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class TooMuchWork(Exception):
    """The comparison would take more steps than it may."""


class BoundedMatcher(difflib.SequenceMatcher[T]):
    """Raises `TooMuchWork` once all its comparisons together have taken more than `max_steps`.

    A step is a pair of equal elements that the matcher looks at: some five million take a second.
    """

    a: Sequence[T]
    b2j: dict[T, list[int]]
    max_steps = 0
    _steps = 0
    _pairs: list[int] | None = None  # pairs of equal elements before each place of the first sequence

    def set_seq1(self, a: Sequence[T]) -> None:
        super().set_seq1(a)
        self._pairs = None

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        if self._pairs is None:
            counts = (1 + len(self.b2j.get(element, ())) for element in self.a)
            self._pairs = list(accumulate(counts, initial=0))
        end = len(self.a) if ahi is None else ahi
        self._steps += self._pairs[end] - self._pairs[alo]
        if self._steps > self.max_steps:
            raise TooMuchWork
        return super().find_longest_match(alo, ahi, blo, bhi)
