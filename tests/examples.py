"""How many examples Hypothesis draws for a test: all of them in CI, a fifth in a developer's own loop.

`make test-fast` chooses the profile "dev" by HYPOTHESIS_PROFILE.
"""

import os

from hypothesis import settings

PROFILES = {"ci": 100, "dev": 20}
"""Percent of the examples that each test names."""

for name, percent in PROFILES.items():
    settings.register_profile(name, max_examples=percent, deadline=None)  # the cores are shared
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def examples(number: int) -> settings:
    """Return settings with a number of examples in CI, and with the profile's share of them elsewhere."""
    return settings(max_examples=max(1, number * settings().max_examples // 100))
