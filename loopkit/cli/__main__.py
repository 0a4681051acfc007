"""Entry point of ``python -m loopkit.cli``."""

import sys

from loopkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
