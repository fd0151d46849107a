"""The short form of the soak: every promise holds over a minute of everything at once."""

from __future__ import annotations

import pytest

from tests.soak.forms import FORMS
from tests.soak.report import judge
from tests.soak.soak import soak

SEED = 10  # what is done is the same each time; when it happens is not. `dev.py soak` draws others


@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute where the machine is free; none of it waits for a clock to prove something
async def test_every_promise_holds_over_a_minute_of_everything_at_once() -> None:
    judgement = judge(await soak(FORMS[1], SEED, print))
    print(judgement.text)
    assert judgement.wrong == [], f"repeat it with: python3 dev.py soak --minutes 1 --seed {SEED}"
