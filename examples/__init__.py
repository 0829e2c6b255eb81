"""Runners that know nothing of the fold, each run with it and without it; see docs/plugging-in.md."""
