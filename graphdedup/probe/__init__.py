"""Measuring what an update carries on a device: see :mod:`graphdedup.capabilities` for the result."""
