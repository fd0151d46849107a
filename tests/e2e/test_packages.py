"""The package that the page shows, really installed: its provider is listed and used, and a broken one hurts nobody."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path

import pytest

from tests.client.command import Kedge
from tests.e2e.home import Home, asking
from tests.models.packages import Package, installed, laid_out, of_page

PAGE = "docs/providers-extending.md"
KEY = "key-of-acme"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the page's package, and one that cannot be imported."""
    site = installed(of_page(PAGE), tmp_path_factory.mktemp("packages"))
    broken = Package("kedge-broken", "0.1", {"broken": "kedge_broken:provider"}, {"kedge_broken.py": "1 / 0\n"})
    laid_out(broken, site)
    return site


@pytest.fixture
def kedge(home: Home, site: Path, tmp_path: Path) -> Kedge:
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))

    class Place(Home):
        @property
        def env(self) -> dict[str, str]:
            return {**super().env, "PYTHONPATH": path, "KEDGE_MODEL": "", "OPENAI_BASE_URL": ""}

    return Kedge(Place(home.directory, home.models), tmp_path)


def test_the_package_of_the_page_answers_and_is_listed_and_a_broken_one_is_told_in_a_line(
    kedge: Kedge, home: Home
) -> None:
    env = {"ACME_API_KEY": KEY, "ACME_BASE_URL": home.models.base_url}
    done = kedge.run("-q", "-m", "acme/acme-large", asking(text="signed and heard"), env=env)
    assert (done.code, done.out) == (0, "signed and heard\n"), done
    (call,) = [call for call in home.models.stats()["calls"] if call["body"]["model"] == "acme-large"]
    assert "authorization" not in call["headers"]
    assert call["headers"]["x-acme-client"] == "kedge"
    assert len(call["headers"]["x-acme-signature"]) == len(hmac.new(b"", b"", hashlib.sha256).hexdigest())

    failed = kedge.run("-q", "-m", "broken/m", "hello", env=env)
    assert failed.code == 2
    assert "Provider 'broken' of the package kedge-broken 0.1 cannot be used: ZeroDivisionError" in failed.err

    listed = kedge("models", "--json", env={"ACME_API_KEY": KEY})
    providers = {each["id"]: each for each in json.loads(listed.out)["providers"]}
    assert providers["acme"]["usable"]
    assert providers["acme"]["why"] == "ACME_API_KEY is set"
    large = next(model for model in providers["acme"]["models"] if model["name"] == "acme/acme-large")
    assert (large["context_window"], large["output_price"], large["source"]) == (200_000, 4.0, "package")
    assert not providers["broken"]["usable"]
    assert "ZeroDivisionError" in providers["broken"]["why"]
    assert KEY not in listed.out
