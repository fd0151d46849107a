from __future__ import annotations

from tests.packaging.conftest import shop as shop  # what a clean machine installs from
