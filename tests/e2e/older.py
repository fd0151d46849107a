"""`kedge` of an older version: python -m tests.e2e.older serve [ARGUMENT ...]"""

import sys

import kedge.version

if __name__ == "__main__":
    kedge.version.VERSION = "0.0.9"  # before anybody has looked at it

    from kedge.cli.main import main

    sys.exit(main(sys.argv[1:]))
