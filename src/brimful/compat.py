"""Planning functions of trainers: ``brimful.compat.verl`` is ``brimful.rl.compat.verl``."""

from brimful.rl.compat import __path__ as __path__
