"""``brimful verify``: a check that packing is right with a model and its packs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from brimful.base.optional import optional
from brimful.cli.option_values import imported
from brimful.cli.options import command, grouped, json_option, value_option
from brimful.cli.program import show
from brimful.errors import SettingsError
from brimful.serve import PackStore, open_packs


@command()
@click.argument("store", metavar="[PACKS]", required=False)
@grouped(
    "Subject",
    value_option("--model", "DIR|ID", "A causal language model: a directory or a hub id.", "path"),
    value_option(
        "--model-type", "NAME", "A tiny random model of an architecture instead: qwen2, llama, …"
    ),
    value_option("--packs", "DIR", "A pack store to take samples from (default: random ones)."),
    value_option(
        "--processor",
        "DIR",
        "Directory of the model's processor, for packs with images, videos or audio.",
    ),
    value_option(
        "--collator",
        "MODULE:NAME",
        "Your collator instead of PackCollator, as package.module:name.",
    ),
)
@grouped(
    "Checks",
    value_option(
        "--attention",
        "NAME,…",
        "Implementations to try (default: eager,sdpa,flex_attention,flash_attention_2).",
    ),
    value_option("--dtype", "NAME", "float32, bfloat16 or float16.", default="float32"),
    value_option("--device", "NAME", "cpu, cuda, cuda:1, …", default="cpu"),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=16),
        default=512,
        help="Most tokens to take from --packs.",
    ),
    click.option("--seed", default=0, help="Seed of random weights and samples."),
    click.option("--no-gradients", is_flag=True, help="Leave out gradients: half the memory."),
)
@json_option
def verify(
    store: str | None,
    path: str | None,
    model_type: str | None,
    no_gradients: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Show that samples in one pack do not see each other, and train as they would one by one.

    Changes one sample and checks whether the logits of others change; compares logits, loss and
    gradients of the packed batch with each sample alone; checks labels, positions, boundaries and
    padding. Exit code 0 if nothing failed and isolation was shown, 1 if not, 2 if it could not be
    run.

      brimful verify --model-type qwen2

      brimful verify --model Qwen/Qwen3-0.6B --packs packs --device cuda --dtype bfloat16

    Packs with media are verified with a tiny model of their family, unless a model is given.

      brimful verify packs --processor processor
    """
    if store is not None and options["packs"] is not None:
        raise SettingsError(f"packs are given twice: {store} and --packs {options['packs']}")
    directory = store if store is not None else options["packs"]
    packs = None if directory is None else open_packs(directory)
    media_settings = None if packs is None else packs.media_settings
    given = (path is not None) + (model_type is not None)
    if given != 1 and not (given == 0 and media_settings is not None):
        raise SettingsError(
            "give either --model DIR|ID or --model-type NAME (such as qwen2): what should be "
            "verified?"
        )
    if media_settings is None and options["processor"] is not None:
        raise SettingsError("--processor is for packs with media, and these packs have no media")
    if media_settings is not None and model_type is not None:
        raise SettingsError(
            f"--model-type {model_type} has no tower for media: leave it out for a tiny model of "
            f"{media_settings['family']}, or give your own model with --model DIR"
        )
    if media_settings is not None and options["processor"] is None:
        raise SettingsError(
            "these packs hold media: give --processor DIR, the directory of the model's processor"
        )
    # Torch and transformers also warn while they are imported.
    with _quiet():
        with optional("torch", "torch", "brimful verify"):
            import torch  # noqa: F401
        from brimful.verify import verify_packing
        from brimful.verify.models import load_model, tiny_model

        names = _attention(options["attention"])
        place = {name: options[name] for name in ("dtype", "device", "seed")}
        model = (
            None
            if path is None
            else load_model(path, dtype=options["dtype"], device=options["device"])
        )
        maker = None
        if packs is not None and media_settings is not None:
            model, samples, maker = _media_case(packs, model, options, place)
        else:
            model = tiny_model(str(model_type), **place) if model is None else model
            samples = _texts(packs, model, options)
        collator = _collator(options["collator"], samples, model, media=maker)
        report = verify_packing(
            model, collator, samples, attention=names, gradients=not no_gradients, media_maker=maker
        )
    show(report.as_dict(), str(report).splitlines, as_json)
    return 0 if report.ok else 1


def _texts(packs: PackStore | None, model: Any, options: dict[str, Any]) -> list[Any]:
    """Return samples of tokens for a model: random ones, or the first of packs."""
    from brimful.verify.drawn_samples import few_of, random_samples

    embedding = model.get_input_embeddings()
    vocab = int(
        embedding.num_embeddings
        if hasattr(embedding, "num_embeddings")
        else embedding.weight.shape[0]
    )
    if packs is None:
        return random_samples(vocab, seed=options["seed"])
    return few_of(packs, vocab=vocab, max_tokens=options["max_tokens"])


def _media_case(
    packs: PackStore, model: Any, options: dict[str, Any], place: dict[str, Any]
) -> tuple[Any, list[Any], Any]:
    """Return a model, a tiny one of the packs' family if none is given, samples, and the maker of
    their features.
    """
    from brimful.media.collate import MediaFeatures
    from brimful.verify.drawn_samples import few_with_media, remembered, renumbered
    from brimful.verify.models import tiny_media_model

    if packs.media_features is not None:
        raise SettingsError(
            "these packs hold features, and verify makes them of the media, to compare: verify "
            "packs of the same plan that were written with --media references"
        )
    features = MediaFeatures.of_packs(packs, options["processor"])
    samples = few_with_media(packs, max_tokens=options["max_tokens"])
    if model is None:
        samples, vocab, token_ids = renumbered(samples)
        rate = features.tokens_per_second
        more: dict[str, Any] = {} if rate is None else {"tokens_per_second": rate}
        model = tiny_media_model(packs.media_settings or {}, token_ids, vocab, **place, **more)
    return model, samples, remembered(features)


def _attention(text: str | None) -> list[str] | None:
    """Parse the implementations to try; return None for the defaults."""
    from brimful.verify.modes import IMPLEMENTATIONS

    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    choices = (*IMPLEMENTATIONS, "flash_attention_3")
    unknown_names = [name for name in names if name not in choices]
    if unknown_names or not names:
        problem = ", ".join(unknown_names) or "nothing"
        raise SettingsError(f"--attention {text!r}: {problem} is not one of {', '.join(choices)}")
    return names


def _collator(name: str | None, samples: list[Any], model: Any, media: Any = None) -> Any:
    """Import ``module:name``, a collator or its class. None gives a PackCollator for this model."""
    if name is None:
        from brimful import PackCollator
        from brimful.integrations.trainers.model_facts import facts_of

        # One token more than the samples have, rounded up to 16, so that every batch has padding to
        # check.
        facts = facts_of(model)
        total = sum(
            len(sample["input_ids"]) if isinstance(sample, dict) else len(sample)
            for sample in samples
        )
        size = -(-(total + 1) // 16) * 16
        return PackCollator(
            pad_to=size, position_start=facts.position_start, mrope=facts.mrope, media=media
        )
    collator = imported("--collator", name, "my_project.data:collate")
    return collator() if isinstance(collator, type) else collator


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries; the report names what they refuse."""
    import logging
    import warnings

    logger = logging.getLogger("transformers")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
