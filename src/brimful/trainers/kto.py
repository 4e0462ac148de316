"""The former place of names of ``brimful.preferences``, for code that imports them from here."""

from brimful.preferences.kto import KtoCollator, kl_sums, packed_kto_loss, train_on_kto, with_mismatch_targets

__all__ = ["KtoCollator", "kl_sums", "packed_kto_loss", "train_on_kto", "with_mismatch_targets"]
