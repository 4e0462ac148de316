"""Write the golden stores with media, as one version of brimful writes them.

    python tests/golden/make_media.py FOLDER

Shards with media are version 4, and its files are frozen here. A format that changes after the first release gets a folder
of its own.
"""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.golden.make import digest
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures

CAPACITY = 64


def rows() -> list[dict[str, Any]]:
    """Chats with files, with bytes in the row, with both, and without any; several share a picture."""
    inside = [f"data:image/png;base64,{base64.b64encode(picture(number)).decode()}" for number in range(3)]
    files = [f"pictures/p{number}.png" for number in range(4)]
    result = []
    for number in range(24):
        images = [files[number % 4]] * (number % 3 == 0) + [inside[number % 3]] * (number % 4 == 1)
        result.append(chat("abcdefgh"[: 1 + number % 8], *images))
    return result


def contents_of_media(packs: Any) -> dict[str, Any]:
    """What must be found in a store with media; pictures in files may be gone, the ones in the store may not."""
    return {
        "fingerprint": packs.fingerprint,
        "num_packs": len(packs),
        "arrays": digest(*(array for pack in packs for array in (pack.input_ids, pack.cu_seqlens, pack.sample_ids))),
        "media": [
            [
                item.medium.kind.value,
                item.medium.name,
                item.start,
                item.length,
                item.segment,
                list(item.grid),
                item.fingerprint,
            ]
            for pack in packs
            for item in pack.attachments
        ],
    }


def pack(directory: str, **options: Any) -> None:
    """Make a store, in the folder of ``rows.jsonl``."""
    from brimful import PlanSettings, open_source, pack_dataset

    source = open_source("rows.jsonl", media=True)
    settings = PlanSettings(capacity=CAPACITY)
    pack_dataset(source, PictureEncoder(), directory, settings, shard_bytes=4 * CAPACITY * 2, num_proc=1, **options)


def main(folder: Path) -> None:
    """Write everything into a new folder."""
    import brimful
    from brimful import open_packs

    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ["BRIMFUL_CACHE"] = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"golden-cache-{os.getpid()}")
    write_pictures("pictures", range(4))
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    stores: dict[str, dict[str, Any]] = {"references": {}, "bytes": {"media_storage": "bytes"}}
    expected: dict[str, Any] = {"made_by": brimful.__version__, "stores": {}}
    for name, options in stores.items():
        pack(name, **options)
        expected["stores"][name] = contents_of_media(open_packs(name))
    # Killed right after its first shard was committed.
    code = "import sys; sys.path[:0] = sys.argv[1:]; import make_media; from tests.faults.planted import die_at; "
    code += "die_at('after-commit', 1); make_media.pack('interrupted', media_storage='bytes')"
    subprocess.run([sys.executable, "-c", code, *map(str, Path(__file__).parents[:3])], check=False)
    for record in Path().glob("*/log/*.json"):  # without the name of the machine
        record.write_text(re.sub(r'"producer_id": "[^"]*"', '"producer_id": "golden-1-00000000"', record.read_text()))
    Path("expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
