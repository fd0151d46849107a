"""Settings for all tests, and the fixtures that drive an engine; others live with the tests that use them."""

import os

import pytest
from hypothesis import settings

from tests.support.signals import stop_children_inheriting_ignored_signals

# The time limit of pytest bounds each test; a limit for each example would only punish a busy machine.
settings.register_profile("kedge", deadline=None, print_blob=True)
settings.load_profile("kedge")

stop_children_inheriting_ignored_signals()

pytest_plugins = ["tests.support.fixtures", "tests.support.model_fixture"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark in (*item.iter_markers("skip"), *item.iter_markers("skipif")):
            if not (mark.kwargs.get("reason") or (mark.name == "skip" and mark.args)):
                raise pytest.UsageError(f"{item.nodeid} is skipped without a reason")
    if not config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    start_slow_tests_first(items)


def start_slow_tests_first(items: list[pytest.Item]) -> None:
    """Put slow tests at the start of each worker's share: at the end, they would run while other workers are idle."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = [item for item in items if not item.get_closest_marker("slow")]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items.clear()
    for number in range(1, workers + 1):
        for tests in (slow, fast):
            items += tests[len(tests) * (number - 1) // workers : len(tests) * number // workers]
