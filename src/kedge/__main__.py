"""`python -m kedge` is `kedge`."""

import sys

from kedge.cli.main import main

sys.exit(main())
