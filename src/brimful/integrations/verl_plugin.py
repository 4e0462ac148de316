"""Entry point of group ``verl.plugins``, which verl imports in every process: with
``BRIMFUL_VERL=1``, its micro-batches are planned here.

Without the variable nothing is imported and nothing changes. verl hides errors of its plugins, so
they are logged here.
"""

import logging
import os

if os.environ.get("BRIMFUL_VERL") == "1":
    try:
        from brimful.rl.compat.verl import install

        install()
    except Exception as error:
        logging.getLogger(__name__).warning("verl keeps its own micro-batches: %s", error)
