"""Random tests: the same examples in every CI run, new ones in every run by hand.

No deadlines anywhere: how long an example takes says what else the machine does, not whether it
is right.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("by-hand", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "by-hand")
