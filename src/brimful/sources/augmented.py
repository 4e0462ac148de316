"""Transforms of samples, with draws that seed, epoch and sample decide: lengths that are measured are those that are trained."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import numpy as np

from brimful.checks import check_type
from brimful.errors import AugmentationError, BadSampleError, SettingsError
from brimful.fingerprint import fingerprint_array, fingerprint_of
from brimful.messages import setting
from brimful.rng import generator
from brimful.sources.sample import Sample

Transform: TypeAlias = Callable[[Sample], Sample]
"""Function from a sample to the sample that is trained; each call may draw another one."""

_drawing = threading.Lock()
"""Held while a transform draws: the generators that it draws from belong to the whole process."""


@dataclass(frozen=True)
class Augmentation:
    """Transforms with the seed and the epoch of their draws.

    Transforms draw from ``random``, ``numpy.random`` or PyTorch, as they do elsewhere. For each sample these begin at a state
    that seed, epoch and sample decide, and afterwards go on as if nothing had been drawn.

    >>> def cut(sample):
    ...     return replace(sample, text=sample.text[: random.randint(1, 9)])
    >>> augmentation = Augmentation((cut,), seed=0, epoch=0)
    >>> sample = Sample(7, text="a long text")
    >>> augmentation.apply(sample, str) == augmentation.apply(sample, str)
    True
    """

    transforms: tuple[Transform, ...]
    seed: int
    epoch: int

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Identity of the transforms and of their draws, for JSON. Taken once: a transform may count its calls."""
        return {"names": [*map(identity_of, self.transforms)], "seed": self.seed, "epoch": self.epoch}

    def __getstate__(self) -> dict[str, Any]:
        """Refuse functions that no other process can have, by name: the error of Python names neither argument nor remedy."""
        for transform in self.transforms:
            if "<locals>" in getattr(getattr(transform, "_transform", transform), "__qualname__", ""):
                raise SettingsError(
                    f"worker processes cannot have {name_of(transform)}, a function within another: define it at the top of a "
                    f"module, or choose {setting('num_proc', 1)}"
                )
        return self.__dict__

    def apply(self, sample: Sample, where: Callable[[int], str]) -> Sample | BadSampleError:
        """Return the sample that is trained; an error with file and line if a transform fails on it."""
        with _drawing, _drawn(self.seed, self.epoch, sample.sample_id):
            try:
                return transformed(sample, self.transforms, where)
            except AugmentationError:
                raise
            except Exception as error:  # transforms are anybody's code
                reason = f"cannot be augmented by {names_of(self.transforms)} ({type(error).__name__}: {error})"
                return BadSampleError(reason, sample_id=sample.sample_id, where=where(sample.sample_id))


def transformed(sample: Sample, transforms: Sequence[Transform], where: Callable[[int], str]) -> Sample:
    """Return a sample after transforms, under its own id, by which packs name it.

    Raises:
        AugmentationError: one returned no sample; names it, file and line.
    """
    sample_id = sample.sample_id
    for transform in transforms:
        result = transform(sample)
        if not isinstance(result, Sample):
            raise not_a_sample(transform, where(sample_id), sample_id, result)
        sample = replace(result, sample_id=sample_id)
    return sample


def as_transforms(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return transforms; a type error names the first that is not a function."""
    for number, transform in enumerate(transforms):
        if not callable(transform):
            check_type(f"transforms[{number}]", transform, (), "a function from a sample to a sample")
    return tuple(transforms)


def name_of(transform: Any) -> str:
    """Return the name of a transform, for messages."""
    return str(getattr(transform, "__name__", type(transform).__name__))


def names_of(transforms: Sequence[Transform]) -> str:
    """Return the names of transforms, for messages."""
    return ", ".join(map(name_of, transforms))


def not_a_sample(transform: Transform, place: str, sample_id: int, result: Any) -> AugmentationError:
    """Return the error for a transform that made something else of a sample."""
    return AugmentationError(
        f"{name_of(transform)} makes no sample of {place} (sample {sample_id}) but {type(result).__name__}: return a Sample"
    )


def identity_of(transform: Transform) -> str:
    """Return the name of a transform and the fingerprint of its code and of the values that it holds.

    Functions that it calls by their names are not followed: a version in ``augmentation`` says that they changed.

    >>> cut = [lambda sample, size=size: sample for size in (1, 1, 2)]
    >>> identity_of(cut[0]) == identity_of(cut[1]), identity_of(cut[0]) == identity_of(cut[2])
    (True, False)
    """
    return f"{name_of(transform)} {fingerprint_of(_parts(transform, ()))[:16]}"


def _parts(value: Any, holders: tuple[int, ...]) -> Any:
    """Return a value as JSON: of functions their code and what they hold, of objects their class and their attributes."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if id(value) in holders:
        return "itself"
    holders = (*holders, id(value))

    def parts(*inner: Any) -> list[Any]:
        return [_parts(item, holders) for item in inner]

    if isinstance(value, (list, tuple)):
        return parts(*value)
    if isinstance(value, (set, frozenset, Mapping)):
        return sorted(parts(*(value.items() if isinstance(value, Mapping) else value)), key=str)
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), *parts(*value.co_consts)]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__qualname__, *parts(value.__code__, value.__defaults__, value.__kwdefaults__, cells)]
    if isinstance(value, partial):
        return parts(value.func, value.args, value.keywords)
    if isinstance(value, type) or not (hasattr(value, "__dict__") or hasattr(value, "__array__")):
        return repr(value).split(" at 0x")[0]
    if hasattr(value, "__array__"):
        return fingerprint_array(np.asarray(value))
    # A method has its object, and an object that is called the code of that.
    owner, code = getattr(value, "__self__", None), getattr(value, "__func__", vars(type(value)).get("__call__"))
    return [repr(type(value)), *parts(owner, code, vars(value))]


@contextmanager
def _drawn(seed: int, epoch: int, sample_id: int) -> Iterator[None]:
    """Let the generators of the process begin, for a block, at a state of this sample."""
    number = int(generator(seed=seed, epoch=epoch, purpose=f"augmentation of sample {sample_id}").words(1)[0]) >> 32
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    random.seed(number)
    np.random.seed(number)
    if torch is not None:
        torch.default_generator.manual_seed(number)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)
