"""Checks of ``verify_packing``, one question a file; each takes a ``PackingSetup`` and returns findings."""
