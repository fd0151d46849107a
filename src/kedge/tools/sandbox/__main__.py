"""List the sandbox backends of this machine for `kedge doctor`: name, description, and why it cannot be used."""

from __future__ import annotations

import sys

from kedge.tools.sandbox import bubblewrap, landlock


def main() -> None:
    for backend in (bubblewrap, landlock):
        why = backend.find_problem()
        sys.stdout.write(f"{backend.NAME}\t{'' if why else backend.describe()}\t{why or ''}\n")


if __name__ == "__main__":
    main()
