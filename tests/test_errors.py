"""The exception tree is the one that its docstring draws."""

from __future__ import annotations

import builtins
import pickle
import re

import pytest

from brimful import errors


def _drawn() -> dict[str, tuple[str, str | None]]:
    """Class -> (parent, built-in base), read from the drawing."""
    found: dict[str, tuple[str, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"    ((?:│   |    )*)(?:├── |└── )(\w+)(?: \((\w+)\))?(?: {2,}.*)?", line)
        if match:
            depth = len(match[1]) // 4
            parent = path[depth - 1] if depth else "BrimfulError"
            path[depth:] = [match[2]]
            found[match[2]] = (parent, match[3])
    return found


def _real() -> dict[str, tuple[str, str | None]]:
    found = {}
    for name in errors.__all__:
        value = getattr(errors, name)
        if isinstance(value, type) and value is not errors.BrimfulError:
            names = [base.__name__ for base in value.__bases__]
            builtin = [base for base in names if hasattr(builtins, base)]
            found[name] = (names[0], builtin[0] if builtin else None)
    return found


def test_the_docstring_draws_every_class_with_its_parent_and_its_builtin():
    """Without it the tree that readers catch by would drift from the classes."""
    assert len(_drawn()) == 35
    assert _drawn() == _real()


def test_every_error_class_of_the_module_is_public():
    """Without it a new class could be raised that cannot be imported in the documented way."""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }
    assert defined == {name for name in errors.__all__ if name != "missing_extra"}


@pytest.mark.parametrize("where", ["", "data.jsonl:17"])
def test_a_bad_sample_survives_the_way_from_a_worker_process(where):
    """Without it an error in a worker process would arrive as an unpickling error without file and line."""
    error = errors.BadSampleError("field 'text' is missing", sample_id=16, where=where)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.BadSampleError
    assert (str(again), again.sample_id, again.where, again.reason) == (
        str(error),
        16,
        where,
        "field 'text' is missing",
    )


def test_a_bad_sample_names_file_line_sample_and_reason():
    """Without it the row to repair is not found."""
    error = errors.BadSampleError("no JSON", sample_id=16)
    assert str(error) == "sample 16: no JSON"
    assert str(error.located("data.jsonl:17")) == "data.jsonl:17 (sample 16): no JSON"


def test_every_error_pickles():
    """Without it a worker's error would break the pool instead of reaching the user."""
    classes = [getattr(errors, name) for name in errors.__all__ if name not in ("missing_extra", "BadSampleError")]
    for error_class in classes:
        again = pickle.loads(pickle.dumps(error_class("what is wrong")))
        assert (type(again), str(again)) == (error_class, "what is wrong")


def test_a_data_loader_makes_the_error_of_its_worker_anew():
    """PyTorch passes ``message`` by name to classes that have it; a TypeError would stand for what is wrong."""
    torch = pytest.importorskip("torch")

    class Damaged(torch.utils.data.Dataset):  # type: ignore[name-defined]
        def __getitem__(self, index):
            raise errors.CorruptFileError("row 3 is damaged")

    with pytest.raises(errors.CorruptFileError, match="row 3 is damaged"):
        list(torch.utils.data.DataLoader(Damaged(), sampler=[0], num_workers=1))


def test_a_missing_extra_prints_the_line_that_installs_it():
    """Without it users would have to guess which extra a class belongs to."""
    error = errors.missing_extra("datasets", "huggingface", "reading x")
    assert isinstance(error, ImportError)
    assert str(error) == "reading x needs datasets, which is not installed: pip install 'brimful[huggingface]'"
