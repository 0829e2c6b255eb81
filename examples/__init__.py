"""Runners that capture with torch alone, each run plain and with the fold under it: ``python -m examples.NAME``."""
