"""`python -m foredraft` is the command `foredraft`."""

import sys

from foredraft.cli import main

sys.exit(main())
