"""Rooms next to the line, by the names of their modules: the line imports none of them, and loads
what is named here when something needs it.

A name is ``module:name``, for ``loaded``; or a module, which has what the function that loads it
lists, or registers what it adds when it is imported. Tables with names of their own are ``SHARING``
of ``base.sharing``, ``ALGORITHMS`` of ``plan.algorithms`` and ``DIALECTS`` of ``collate.dialects``.
"""

from importlib import import_module
from typing import Any


def loaded(target: str) -> Any:
    """Return what ``module:name`` names, and import its module.

    Raises:
        ImportError: no such module, or an error in it.
        AttributeError: the module has no such name.

    >>> loaded("math:floor")(2.5)
    2
    """
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


REMOTE_STORE = "brimful.clusters.remote_blobs:FsspecBlobStore"
"""Class of a blob store at a URL: ``(url)`` (``base.blobs.BlobStore``)."""

REMOTE_FILES = "brimful.clusters.remote_blobs:RemoteFile"
"""Class of a file at a URL: ``(url)``, with ``version()``, which changes when the file does, and
``open()``.
"""

BLOB_COPIES = "brimful.clusters.local_copies:LocalCopies"
"""Class of local copies of the blobs of a store: ``(store, directory, max_bytes)``
(``base.blobs.interface.BlobCopies``).
"""

ENGINES = {"ray": "brimful.clusters.ray:run_on_ray"}
"""Functions that run tasks on the machines of a cluster, by the name of its engine."""

DRAWS = {"mixture": "brimful.mixtures:Mixture"}
"""Classes of ``plan.policies.draw.Draw`` by their key in the record of a plan."""

BUDGET_PACKER = "brimful.planners.vector.pack_vectors:pack_vectors"
"""Function that packs under several budgets: ``(sizes, *, capacities, seed) -> PackResult``."""

FAST_TOKENIZER = "brimful.fast.fast_tokenizer:FastTokenizer"
"""Class of a library that tokenizes in place of the reference: ``(facts, reference_ids)``
(``encode.tokenizer.FastLibrary``).
"""

TOKENIZER_READER = "brimful.fast.tokenizer_files:read_facts"
"""Function that reads a directory without Transformers: ``(directory) -> (TokenizerFacts,
backend)``, or None where only Transformers knows.
"""

FILLING = "brimful.fast.filling:Filling"
"""Class that makes the texts of chats without rendering each: ``(template, finder, trusted)``
(``encode.chat.TextFiller``).
"""

PRELOAD = "brimful.fast.preloading:preload"
"""Function that tells how a server of worker processes loads a tokenizer: ``(place, state_path) ->
modules``, as ``encode.encoder.EncoderEngine.preload``.
"""

FORMAT_MODULES = ("brimful.preferences.formats",)
"""Modules that register formats of rows (``sources.formats.register``)."""

LATE_FORMATS = {
    "caption": "brimful.media.sources.captions",
    "detection": "brimful.media.sources.captions",
    "transcript": "brimful.media.sources.captions",
}
"""Modules that register formats of rows of an attachment and its text, by their names."""

LATE_COLUMNS = {"caption", "captions", "objects"}
"""Columns of these formats, besides columns of attachments: a row without any is of another format.
"""

TOWER_TERMS = "brimful.media.towers:tower_terms"
"""Function that reads the costs of towers from a model's config (``plan.schedule.cost_model``)."""

READER_MODULES = {
    "directory": ("brimful.integrations.packed_layouts", "brimful.media.sources.paired_files"),
    "tar": ("brimful.integrations.packed_layouts", "brimful.media.sources.tars"),
    "lines": ("brimful.integrations.packed_layouts",),
}
"""Modules with ``open_rows(path, settings, cache)``, by the kind of the path: its rows in a layout
of their own, or None.
"""

ATTACHMENT_JOB = "brimful.media.job.media_job:job_of"
"""Function from a ``PackJob`` to its ``AttachmentJob`` (``store.claim``), or None."""

ATTACHMENT_WRITER = "brimful.media.job.writer:ShardMediaWriter"
"""Class that writes the attachments of one shard (``store.writing``)."""

ATTACHMENT_INPUTS = "brimful.media.tokenized"
"""Module of inputs for attachments in plain samples and batches (``attachment.attachment_inputs``).
"""

ATTACHMENT_MEASURES = "brimful.media.measure"
"""Module of attachments in measured rows (``measure.block_task.attachment_measures``)."""

PLACING = "brimful.media.sources.places:MediaPlace"
"""Class of ``sources.attachment_names.Placing``: ``(directory, allow_outside)``."""

ATTACHMENT_STORE = "brimful.media.store"
"""Package of attachments in pack stores (``attachment.attachment_store``)."""

ATTACHMENT_ENCODER = "brimful.media.encode:MediaChatEncoder"
"""Class of an encoder of chats with attachments: ``(tokenizer, family, **settings)``."""
