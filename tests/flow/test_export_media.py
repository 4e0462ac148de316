"""Chats with pictures, packed, exported and brought back: the same tokens, the same bytes."""

import json
import tarfile

import pytest

from brimful import export_packs, open_packs, pack_dataset
from brimful.plan import PlanSettings
from brimful.sources import open_source
from tests.flow.test_media import CAPACITY, encoder_of, rows
from tests.integrations.export.stores import as_rows, content, run_with


@pytest.fixture(scope="module")
def source():
    return open_source(list(rows()), media=True)


@pytest.fixture(scope="module")
def encoder(small_qwen):
    return encoder_of("qwen2-vl", small_qwen)


@pytest.fixture(scope="module")
def directory(source, encoder, tmp_path_factory):
    home = tmp_path_factory.mktemp("packed")
    pack_dataset(source, encoder, home / "packs", PlanSettings(capacity=CAPACITY), cache_dir=home / "cache")
    return home / "packs"


def test_samples_come_back_with_their_tokens(directory, source, encoder, tmp_path):
    """Through the layout of texts and pictures and the same encoder: every segment is what it was."""
    export_packs(directory, to="packed-chats", directory=tmp_path / "export", source=source)
    samples = open_source(tmp_path / "export", media=True)
    segments = [
        (pack, number, sample_id)
        for pack in open_packs(directory)
        for number, sample_id in enumerate(pack.sample_ids.tolist())
    ]
    assert sorted(sample_id for _, _, sample_id in segments) == list(range(len(source)))
    for row, (pack, number, sample_id) in enumerate(segments):
        sample = samples[row]
        assert encoder.encode(sample).input_ids.tolist() == pack.segment(number).tolist()
        assert [medium.read() for medium in sample.attachments] == [
            medium.read() for medium in source[sample_id].attachments
        ]


def test_media_of_an_export_are_those_of_the_source(directory, source, tmp_path):
    """Byte for byte, of the sample that they belong to, at its tokens; without any peer."""
    export_packs(directory, to="energon", directory=tmp_path / "export")
    num_media = 0
    with tarfile.open(tmp_path / "export" / "packs-000000.tar") as tar:
        keys = list(dict.fromkeys(name.partition(".")[0] for name in tar.getnames()))
        for key, pack in zip(keys, open_packs(directory), strict=True):
            facts = json.loads(content(tar, f"{key}.json"))
            by_sample = {sample_id: [] for sample_id in facts["sample_ids"]}
            for item, own_item in zip(facts["media"], pack.attachments, strict=True):
                by_sample[facts["sample_ids"][item["segment"]]].append(content(tar, f"{key}.{item['part']}"))
                assert (item["start"], item["length"], tuple(item["grid"])) == (
                    own_item.start,
                    own_item.length,
                    own_item.grid,
                )
                num_media += 1
            for sample_id, contents in by_sample.items():
                assert contents == [medium.read() for medium in source[sample_id].attachments]
    assert num_media == sum(len(source[index].attachments) for index in range(len(source))) > 15


@pytest.mark.parametrize("version", ["BRIMFUL_ENERGON5", "BRIMFUL_ENERGON7", "BRIMFUL_ENERGON8"])
def test_energon_reads_pictures(version, directory, tmp_path):
    export_packs(directory, to="energon", directory=tmp_path / "export", packs_per_shard=2)
    found = json.loads(run_with(version, "energon_reader.py", "in_order", tmp_path / "export"))
    assert found["rows"] == as_rows(open_packs(directory))
