"""One sample a row: the mask is 1 at its tokens."""

import pytest

pytest.importorskip("torch")


from brimful import PackCollator
from brimful.collate import Padding
from brimful.errors import CollateError, SettingsError
from brimful.testing.contracts import DialectContract
from brimful.testing.toys import toy_pack
from tests.collate.dialects.reading import count_labels, pairs


class TestPlain(DialectContract):
    dialect = "plain"
    knows_gaps = True

    def segments(self, batch):
        rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
        return [row[mask.bool()].tolist() for row, mask in rows]

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_rows_of_plain_are_padded_as_asked():
    """Ignored, a compiled model would compile for every batch, and embed token 0 where another is padding."""
    packs = [toy_pack([3, 2])]
    ids = packs[0].input_ids.tolist()
    given = PackCollator(dialect="plain", pad_to=5, pad_token_id=9)(packs)
    assert given["input_ids"].tolist() == [[*ids[:3], 9, 9], [*ids[3:], 9, 9, 9]]
    assert given["labels"].tolist() == [[-100, *ids[1:3], -100, -100], [-100, ids[4], -100, -100, -100]]
    assert given["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    for padding in (Padding(multiple_of=4), Padding(segment_multiple_of=4), Padding(to=4)):
        assert PackCollator(dialect="plain", padding=padding)(packs)["input_ids"].shape == (2, 4)
    with pytest.raises(CollateError, match="pad_to is 2 and sample 0 has 3 tokens: raise it"):
        PackCollator(dialect="plain", pad_to=2)(packs)
    for setting in ({"num_segments": 4}, {"max_seqlen": 8}):
        with pytest.raises(SettingsError, match=f"{next(iter(setting))}=. does not go with dialect 'plain'"):
            PackCollator(dialect="plain", padding=Padding(**setting))
