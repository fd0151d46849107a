"""`argparse` for commands that need not start fast. What is wrong with the arguments is raised, and not printed."""

from __future__ import annotations

import argparse
from typing import NoReturn

from kedge.cli.options import UsageError


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
