"""``python -m tests.random_calls``."""

import sys

from .running import main

sys.exit(main())
