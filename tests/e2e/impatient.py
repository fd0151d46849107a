"""`kedge` whose short retries take a second in all: what takes minutes in the product takes moments in a test."""

from __future__ import annotations

import sys

from kedge.agent import agent
from kedge.agent.retry import RetryPolicy
from kedge.cli.main import main


def short_policy() -> RetryPolicy:
    return RetryPolicy(
        attempts=3, first_delay_s=0.05, max_retry_after_s=1.0, limit_wait_s=(0.5, 2.0), network_wait_s=(0.2, 0.5)
    )


if __name__ == "__main__":
    agent.RetryPolicy = short_policy
    sys.exit(main(sys.argv[1:]))
