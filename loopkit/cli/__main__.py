"""Entry point of ``python -m loopkit.cli``."""

import sys

from loopkit.cli.main import main

sys.exit(main())
