"""How many examples Hypothesis draws for a test: others in each run, and all that the test names in `make test-all`.

`make test-fast` and `make test-all` choose their profile by HYPOTHESIS_PROFILE.
"""

import os

from hypothesis import settings

PROFILES = {"all": 100, "test": 40, "fast": 10}
"""Percent of the examples that each test names."""

for name, percent in PROFILES.items():
    settings.register_profile(name, max_examples=percent, deadline=None)  # the cores are shared
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


def examples(number: int) -> settings:
    """Return settings with the profile's share of a number of examples."""
    return settings(max_examples=max(1, number * settings().max_examples // 100))
