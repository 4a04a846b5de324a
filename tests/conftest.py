"""What every test shares: how hypothesis draws.

By default it draws the same examples on every machine and every day, so that a change is judged by itself and a red run
can be repeated. `HYPOTHESIS_PROFILE=search` draws new ones; what it finds becomes a case of its own.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
