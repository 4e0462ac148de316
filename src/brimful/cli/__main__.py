"""``python -m brimful.cli``: the same as ``brimful``."""

from brimful.__main__ import main

if __name__ == "__main__":
    main()
