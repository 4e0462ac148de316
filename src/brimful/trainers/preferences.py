"""The former place of names of ``brimful.preferences``, for code that imports them from here."""

from brimful.preferences.dpo import PreferenceCollator, packed_preference_loss, train_on_preferences

__all__ = ["PreferenceCollator", "packed_preference_loss", "train_on_preferences"]
