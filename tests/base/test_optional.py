"""A library that is missing is one line with what to install, also if Transformers asks for it."""

import re

import pytest

from brimful.base.optional import optional
from brimful.errors import MissingExtraError

transformers = pytest.importorskip("transformers", reason="needs the extra brimful[text]")
SENTENCES = {
    name: text.format("AutoProcessor")
    for name, text in vars(transformers.utils.import_utils).items()
    if name.endswith("_IMPORT_ERROR") and not name.startswith("ACCELERATE")
}


@pytest.mark.parametrize("name", SENTENCES)
def test_every_library_that_transformers_asks_for_is_a_line(name):
    line = r"^pixels needs \S+, which is not installed: pip install \S+$"
    with pytest.raises(MissingExtraError, match=line), optional("transformers", "text", "pixels"):
        raise ImportError(SENTENCES[name])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("TORCHVISION", "Torchvision, which is not installed: pip install torchvision"),
        ("VISION", "PIL, which is not installed: pip install pillow"),
        ("PYTORCH", "PyTorch, which is not installed: pip install torch"),
        ("LIBROSA", "librosa, which is not installed: pip install librosa"),
        ("TOKENIZERS", "Tokenizers, which is not installed: pip install tokenizers"),
    ],
)
def test_the_distribution_is_named(name, line):
    with pytest.raises(MissingExtraError, match=f"{re.escape(line)}$"), optional("transformers", "text", "pixels"):
        raise ImportError(SENTENCES[f"{name}_IMPORT_ERROR"])


def test_a_broken_installation_stays_as_it_is():
    """No extra of brimful repairs it, and its own error tells more."""
    for error in (ImportError("undefined symbol"), ModuleNotFoundError("No module named 'a'", name="a")):
        with pytest.raises(type(error)) as caught, optional("transformers", "text", "pixels"):
            raise error
        assert caught.value is error


@pytest.mark.parametrize("kind", ["AutoImageProcessor", "AutoFeatureExtractor", "AutoTokenizer", "AutoConfig"])
def test_wherever_transformers_loads_something(kind, monkeypatch, small_qwen, tmp_path):
    """As Transformers 5.9 without torchvision, whose collator ended in a traceback of twenty lines."""
    from brimful.encode.tokenizer import Tokenizer
    from brimful.media.families import open_family
    from brimful.media.feature_maker import AudioFeatures, ImageFeatures
    from brimful.verify.models import load_model

    def asks(*_: object, **__: object) -> None:
        raise ImportError(SENTENCES["TORCHVISION_IMPORT_ERROR"])

    monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", asks)
    (tmp_path / "preprocessor_config.json").write_text('{"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}')
    uses = {
        "AutoImageProcessor": lambda: ImageFeatures(str(tmp_path), open_family("qwen2-vl", tmp_path)).processor,
        "AutoFeatureExtractor": lambda: AudioFeatures(str(tmp_path), open_family("qwen2-audio")).processor,
        "AutoTokenizer": lambda: Tokenizer(small_qwen).hf,
        "AutoConfig": lambda: load_model(str(tmp_path)),
    }
    with pytest.raises(MissingExtraError, match=r"needs Torchvision, which is not installed: pip install torchvision$"):
        uses[kind]()


def test_a_bare_installation_names_the_extra_of_text(monkeypatch, small_qwen):
    """The cache of tokenizers asks for the version of Transformers first: it ended in a traceback of forty lines."""
    import importlib.metadata

    from brimful.base.optional import version_of
    from brimful.encode.tokenizer import Tokenizer

    def absent(library: str) -> str:
        raise importlib.metadata.PackageNotFoundError(library)

    version_of.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", absent)
        with pytest.raises(MissingExtraError, match=r"pip install 'brimful\[text\]'$"):
            _ = Tokenizer(str(small_qwen)).fingerprint
    version_of.cache_clear()
