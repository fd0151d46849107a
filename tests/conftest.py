"""Settings for all tests, and the fixtures that drive an engine; others live with the tests that use them."""

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
    # A slow test that started last would run alone, while the other workers have nothing to do.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
