"""Mix of several exports, from which Megatron-Energon draws by weight."""

import json
from collections.abc import Mapping
from pathlib import Path

from brimful.base.atomic_file import atomic_file
from brimful.errors import SettingsError


def energon_mix(weights: Mapping[str, float], path: str | Path, *, split: str = "train") -> None:
    """Write the ``Metadataset`` file from which Energon draws several exports, for versions 5 to 7.

    Energon draws a data set in proportion to its weight, so weights are shares of packs.

    Args:
        weights: directory of each export, relative to the file or absolute, and its weight.
        path: of the file, which ends in ``.yaml``.
        split: of the data sets, and of the mix.

    Raises:
        SettingsError: no data set, or a weight that is not above 0.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     energon_mix({"captions": 1, "chats": 2.5}, f"{home}/mix.yaml")
    ...     print(Path(f"{home}/mix.yaml").read_text())
    __module__: megatron.energon
    __class__: Metadataset
    splits:
      train:
        datasets:
        - path: "captions"
          weight: 1.0
        - path: "chats"
          weight: 2.5
    <BLANKLINE>
    """
    bad_weights = {name: weight for name, weight in weights.items() if not weight > 0}
    if not weights or bad_weights:
        raise SettingsError(f"a mix needs data sets with weights above 0 and has {bad_weights or 'none'}")
    lines = ["__module__: megatron.energon", "__class__: Metadataset", "splits:", f"  {split}:", "    datasets:"]
    for name, weight in weights.items():
        # A JSON string is also a YAML string: names may hold any character.
        lines += [f"    - path: {json.dumps(str(name))}", f"      weight: {float(weight)!r}"]
    with atomic_file(path) as file:
        file.write("\n".join([*lines, ""]).encode())
