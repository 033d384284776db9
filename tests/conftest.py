"""Settings for every test: fuzzing draws the same examples in every run, and has no stop-watch."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
