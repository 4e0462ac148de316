"""The former place of names of ``brimful.preferences``, for code that imports them from here."""

from brimful.preferences.references import ReferenceLogps, compute_references, model_fingerprint

__all__ = ["ReferenceLogps", "compute_references", "model_fingerprint"]
