"""``brimful verify``: a check that packing is right with a model and its packs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from brimful.base.optional import optional
from brimful.base.sharing import ShareMode
from brimful.cli.option_values import imported
from brimful.cli.options import command, grouped, json_option, value_option
from brimful.cli.program import show
from brimful.errors import SettingsError
from brimful.serve import open_packs


@command()
@click.argument("store", metavar="[PACKS]", required=False)
@grouped(
    "Subject",
    value_option("--model", "DIR|ID", "A causal language model: a directory or a hub id.", "path"),
    value_option(
        "--model-type", "NAME", "A tiny random model of an architecture instead: qwen2, llama, …"
    ),
    value_option("--packs", "DIR", "A pack store to take samples from (default: random ones)."),
    click.option(
        "--share",
        type=click.Choice([share.value for share in ShareMode]),
        default=ShareMode.NONE.value,
        help="Random samples that share their prefixes, in packs of trees; --packs say it themselves.",
    ),
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
        "Implementations to try (default: eager,sdpa,flex_attention,flash_attention_2; of trees "
        "brimful_tree in place of the last).",
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

    In trees, one segment changes at a time: what continues it must move, and nothing else.

      brimful verify --model-type qwen3 --share prefixes
    """
    if store is not None and options["packs"] is not None:
        raise SettingsError(f"packs are given twice: {store} and --packs {options['packs']}")
    directory = store if store is not None else options["packs"]
    packs = None if directory is None else open_packs(directory)
    media_settings = None if packs is None else packs.attachment_settings
    given = (path is not None) + (model_type is not None)
    if given != 1 and not (given == 0 and media_settings is not None):
        raise SettingsError(
            "give either --model DIR|ID or --model-type NAME (such as qwen2): what should be "
            "verified?"
        )
    if packs is not None and options["share"] != ShareMode.NONE.value:
        raise SettingsError(
            f"--share {options['share']} draws random samples, and --packs gives packs: leave one "
            "out; packs of trees are verified as trees"
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
    if packs is not None and packs.attachment_features is not None:
        raise SettingsError(
            "these packs hold features, and verify makes them of the media, to compare: verify "
            "packs of the same plan that were written with --media references"
        )
    # Torch and transformers also warn while they are imported.
    with _quiet():
        with optional("torch", "torch", "brimful verify"):
            import torch  # noqa: F401
        from brimful import PackCollator
        from brimful.integrations.trainers.model_facts import facts_of
        from brimful.media.collate import MediaFeatures
        from brimful.trees.collate.fork import forked
        from brimful.verify import drawn_samples as drawn
        from brimful.verify import verify_packing
        from brimful.verify.implementations import IMPLEMENTATIONS, TREE_IMPLEMENTATIONS
        from brimful.verify.models import load_model, tiny_media_model, tiny_model

        names = options["attention"] and [name.strip() for name in options["attention"].split(",")]
        choices = (*dict.fromkeys((*IMPLEMENTATIONS, *TREE_IMPLEMENTATIONS)), "flash_attention_3")
        if unknown_names := [name for name in names or () if name not in choices]:
            raise SettingsError(
                f"--attention: {', '.join(unknown_names)} is not one of {', '.join(choices)}"
            )
        run_options = {name: options[name] for name in ("dtype", "device", "seed")}
        max_tokens, maker, model = options["max_tokens"], None, None
        if path is not None:
            model = load_model(path, dtype=options["dtype"], device=options["device"])
        if packs is not None and media_settings is not None:
            features = MediaFeatures.of_packs(packs, options["processor"])
            samples: Any = drawn.few_with_media(packs, max_tokens=max_tokens)
            if model is None:
                samples, vocab, token_ids = drawn.renumbered(samples)
                if features.tokens_per_second is not None:
                    run_options["tokens_per_second"] = features.tokens_per_second
                model = tiny_media_model(media_settings, token_ids, vocab, **run_options)
            maker = drawn.remembered(features)
        else:
            model = tiny_model(str(model_type), **run_options) if model is None else model
            embedding = model.get_input_embeddings()
            vocab = int(getattr(embedding, "num_embeddings", 0) or embedding.weight.shape[0])
            if packs is not None:
                samples = drawn.few_of(packs, vocab=vocab, max_tokens=max_tokens)
            elif options["share"] == ShareMode.PREFIXES.value:
                samples = drawn.random_trees(vocab, seed=options["seed"])
            else:
                samples = drawn.random_samples(vocab, seed=options["seed"])
        if options["collator"] is None:
            # One token more than the samples have, rounded up to 16, so that every batch has
            # padding to check.
            facts = facts_of(model)
            total = sum(
                len(sample["input_ids"])
                if isinstance(sample, dict)
                else len(sample if sample.sharing is None else forked(sample))
                for sample in samples
            )
            has_trees = any(getattr(sample, "sharing", None) is not None for sample in samples)
            collator: Any = PackCollator(
                dialect="transformers_tree" if has_trees else "transformers",
                pad_to=-(-(total + 1) // 16) * 16,
                position_start=facts.position_start,
                mrope=facts.mrope,
                media=maker,
            )
        else:
            collator = imported("--collator", options["collator"], "my_project.data:collate")
            collator = collator() if isinstance(collator, type) else collator
        report = verify_packing(
            model, collator, samples, attention=names, gradients=not no_gradients, media_maker=maker
        )
    show(report.as_dict(), str(report).splitlines, as_json)
    return 0 if report.ok else 1


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
