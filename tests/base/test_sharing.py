"""The seam of what samples share: every kind has what the line asks for, and who shares nothing loads no kind."""

import re
import subprocess
import sys

import pytest

from brimful.base.sharing import SHARING, ShareMode, wing_of
from brimful.store.shards.format import ATTACHMENT_VERSION, CONTENTS, SHARD_VERSION, version_of

NAMES = re.findall(r"``([A-Za-z_]+)(?:\([^`]*\))?``", wing_of.__doc__.partition("it has:")[2])
"""What ``wing_of`` lists, with some fields of it."""

OTHER_NAMES = {"SharedLengths", "SharedPack", "takes_sharing", "lines", "room", "as_dict"}


@pytest.mark.parametrize("kind", [kind for kind in ShareMode if kind is not ShareMode.NONE])
def test_a_kind_has_all_that_the_line_asks_for(kind):
    """No editor and no type checker follows a name in a text."""
    assert len(NAMES) > 20
    wing = wing_of(kind)
    assert [name for name in NAMES if name not in OTHER_NAMES and not hasattr(wing, name)] == []


def test_a_version_has_one_meaning():
    """A reader that takes trees for flat packs would train on parts of samples."""
    assert len(CONTENTS) == 2 + 2 * len(SHARING)
    assert [version_of(has_attachments=media, sharing=None) for media in (False, True)] == [
        SHARD_VERSION,
        ATTACHMENT_VERSION,
    ]
    plans = [1, 2, *(kind.plan_version for kind in SHARING.values())]
    assert len(set(plans)) == len(plans)


def test_what_shares_nothing_loads_no_kind(tmp_path):
    """From rows to a batch: a user of flat packs neither waits for trees nor reads them in a traceback."""
    code = f"""
import sys
from brimful import LengthTable, PackCollator, PackLoader, TokenEncoder, open_packs, pack_dataset
rows = [{{"input_ids": [5, 6, 7]}}, {{"input_ids": [8, 9]}}]
pack_dataset(rows, TokenEncoder(), {str(tmp_path)!r}, capacity=8, num_proc=1, cache_dir={str(tmp_path / "c")!r})
packs = open_packs({str(tmp_path)!r})
batches = list(PackLoader(packs, collate_fn=PackCollator()))
LengthTable.open({str(tmp_path / "lengths.arrow")!r})
print(len(batches), sorted(name for name in sys.modules if name.startswith("brimful.trees")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("1 []", 0), done.stderr
