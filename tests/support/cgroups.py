"""Control groups in tests: on where this machine allows them, and switched off."""

from __future__ import annotations

import pytest

from kedge.engine.processes import cgroups

needs_cgroups = pytest.mark.skipif(
    cgroups.home() is None, reason="this machine lets us make no control group (cgroup v2) below our own"
)


def switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "home", lambda: None)
