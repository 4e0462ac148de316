"""Transforms of samples, with draws that seed, epoch and sample decide: the measured lengths are
the trained ones.
"""

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

from brimful.base.checks import check_type
from brimful.base.fingerprint import fingerprint_array, fingerprint_of
from brimful.base.rng import generator
from brimful.base.wording import setting
from brimful.errors import AugmentationError, BadSampleError, SettingsError
from brimful.sources.sample import Sample

Transform: TypeAlias = Callable[[Sample], Sample]
"""Function from a sample to the sample that is trained; each call may draw a different one."""

_drawing = threading.Lock()
"""Held while a transform draws: its random generators belong to the whole process."""


@dataclass(frozen=True)
class Augmentation:
    """Transforms with the seed and the epoch of their draws.

    Transforms draw from ``random``, ``numpy.random`` or PyTorch, as they do elsewhere. For each
    sample these generators begin at a state that seed, epoch and sample decide. Afterwards they
    continue as if nothing had been drawn.

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
        """Identity of the transforms and of their draws, for JSON. Taken once: a transform may
        count its calls.
        """
        return {
            "names": [*map(identity_of, self.transforms)],
            "seed": self.seed,
            "epoch": self.epoch,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Refuse, by name, functions that cannot be sent to a process: Python's error gives no
        argument or remedy.
        """
        for transform in self.transforms:
            if "<locals>" in getattr(
                getattr(transform, "_transform", transform), "__qualname__", ""
            ):
                raise SettingsError(
                    f"worker processes cannot have {name_of(transform)}, a function within "
                    f"another: define it at the top of a module, or choose {setting('num_proc', 1)}"
                )
        return self.__dict__

    def apply(self, sample: Sample, where: Callable[[int], str]) -> Sample | BadSampleError:
        """Return the sample that is trained; an error with file and line if a transform fails on
        it.
        """
        with _drawing, _drawn(self.seed, self.epoch, sample.sample_id):
            try:
                return transformed(sample, self.transforms, where)
            except AugmentationError:
                raise
            except Exception as error:  # transforms are user code
                reason = (
                    f"cannot be augmented by {names_of(self.transforms)} "
                    f"({type(error).__name__}: {error})"
                )
                return BadSampleError(
                    reason, sample_id=sample.sample_id, where=where(sample.sample_id)
                )


def transformed(
    sample: Sample, transforms: Sequence[Transform], where: Callable[[int], str]
) -> Sample:
    """Return a sample after transforms, under its own id, which packs refer to.

    Raises:
        AugmentationError: a transform did not return a sample; names it, file and line.
    """
    sample_id = sample.sample_id
    for transform in transforms:
        result = transform(sample)
        if not isinstance(result, Sample):
            raise AugmentationError(
                f"{name_of(transform)} applied to {where(sample_id)} (sample {sample_id}) returns "
                f"{type(result).__name__}: return a Sample"
            )
        sample = replace(result, sample_id=sample_id)
    return sample


def as_transforms(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return transforms; a type error names the first that is not a function."""
    for index, transform in enumerate(transforms):
        if not callable(transform):
            check_type(
                f"transforms[{index}]", transform, (), "a function from a sample to a sample"
            )
    return tuple(transforms)


def name_of(transform: Any) -> str:
    """Return the name of a transform, for messages."""
    return str(getattr(transform, "__name__", type(transform).__name__))


def names_of(transforms: Sequence[Transform]) -> str:
    """Return the names of transforms, for messages."""
    return ", ".join(map(name_of, transforms))


def identity_of(transform: Transform) -> str:
    """Return the name of a transform and the fingerprint of its code and of the values that it
    holds.

    Global functions that it calls are not followed: a version in ``augmentation`` says that they
    changed.

    >>> cut = [lambda sample, size=size: sample for size in (1, 1, 2)]
    >>> identity_of(cut[0]) == identity_of(cut[1]), identity_of(cut[0]) == identity_of(cut[2])
    (True, False)
    """
    return f"{name_of(transform)} {fingerprint_of(_identity(transform, ()))[:16]}"


def _identity(value: Any, holders: tuple[int, ...]) -> Any:
    """Return a value as JSON: a function's code and the values it holds; an object's class and
    attributes.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if id(value) in holders:
        return "itself"
    holders = (*holders, id(value))

    def identities(*inner: Any) -> list[Any]:
        return [_identity(item, holders) for item in inner]

    if isinstance(value, (list, tuple)):
        return identities(*value)
    if isinstance(value, (set, frozenset, Mapping)):
        return sorted(
            identities(*(value.items() if isinstance(value, Mapping) else value)), key=str
        )
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), *identities(*value.co_consts)]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [
            value.__qualname__,
            *identities(value.__code__, value.__defaults__, value.__kwdefaults__, cells),
        ]
    if isinstance(value, partial):
        return identities(value.func, value.args, value.keywords)
    if isinstance(value, type) or not (hasattr(value, "__dict__") or hasattr(value, "__array__")):
        return repr(value).split(" at 0x")[0]
    if hasattr(value, "__array__"):
        return fingerprint_array(np.asarray(value))
    # A method has its object; a callable object has the code of its ``__call__``.
    owner, code = (
        getattr(value, "__self__", None),
        getattr(value, "__func__", vars(type(value)).get("__call__")),
    )
    return [repr(type(value)), *identities(owner, code, vars(value))]


@contextmanager
def _drawn(seed: int, epoch: int, sample_id: int) -> Iterator[None]:
    """Run a block with the generators of the process in a state of this sample, then restore
    them.
    """
    draw_seed = (
        int(
            generator(seed=seed, epoch=epoch, purpose=f"augmentation of sample {sample_id}").words(
                1
            )[0]
        )
        >> 32
    )
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    random.seed(draw_seed)
    np.random.seed(draw_seed)
    if torch is not None:
        torch.default_generator.manual_seed(draw_seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)
