"""``python -m tests.random_programs``."""

import sys

from .running import main

sys.exit(main())
