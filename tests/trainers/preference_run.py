"""What one rank does in ``test_preferences``: started by torchrun, it trains and writes its weights."""

import os
import sys
from pathlib import Path

import numpy as np

from tests.trainers.test_preferences import trained

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    np.savez(folder / f"{os.environ['RANK']}.npz", **trained(folder, ranks=int(os.environ["WORLD_SIZE"])))
