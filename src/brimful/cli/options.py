"""Options that several commands share.

Types follow from defaults. A setting of the command group makes ``--help`` show them (``brimful.cli.program``).
"""

import click

from brimful.cli.command import choice_option, grouped, value_option
from brimful.cli.mixture import read_mixture
from brimful.encode import Mode, Reasoning
from brimful.execute import Engine
from brimful.measure.filters import FILTERS
from brimful.media.families import FAMILIES
from brimful.media.storage import MediaStorage
from brimful.plan import ALGORITHMS, NoTarget, Overflow
from brimful.plan.algorithms import Algorithm
from brimful.sources.formats import FORMATS

source_options = grouped(
    "Source",
    value_option(
        "--format", "NAME", f"What rows look like: {', '.join(FORMATS)}. Detected if not given.", "format_name"
    ),
    value_option(
        "--field",
        "NAME=KEY",
        "A field of the format under another key, e.g. messages=dialogue.",
        "fields",
        multiple=True,
    ),
    value_option(
        "--ignore",
        "NAME",
        "A column to leave out although it changes the meaning of a sample (images, label, rejected), or a mark such "
        "as <image> that is plain text.",
        multiple=True,
    ),
    value_option(
        "--prompt", "TEXT", "The user's turn for captions, boxes and transcripts, whose rows do not contain it."
    ),
    choice_option("--text-unit", ["file", "line"], "What one document of a text file is.", default="file"),
    value_option("--split", "NAME", "Split of a data set with several (all: every split in a directory)."),
    value_option("--subset", "NAME", "Configuration (subset) of a data set with several.", "config"),
    value_option("--max-samples", "N", "Take the first N samples: a trial run.", type=int),
)

transform_option = grouped(
    "Source",
    value_option(
        "--transform",
        "MODULE:NAME",
        "A function that maps a sample to the sample to train on, before encoding; may be given several times.",
        "transforms",
        multiple=True,
    ),
)

encoder_options = grouped(
    "Encoding",
    value_option("--tokenizer", "DIR|ID", "Tokenizer: a directory or a hub id."),
    choice_option(
        "--mode",
        Mode,
        "Chats with the chat template, prompt and completion without one, documents, or ready tokens; auto chooses by "
        "the format of the rows.",
        default="auto",
    ),
    value_option("--chat-template", "FILE", "A Jinja chat template instead of the tokenizer's own."),
    value_option(
        "--template-arg",
        "NAME=VALUE",
        "A variable of the chat template, such as enable_thinking=false; may be given several times.",
        "template_args",
        multiple=True,
    ),
    value_option("--system", "TEXT", "System prompt for chats without one."),
    choice_option(
        "--reasoning",
        Reasoning,
        "Reasoning (reasoning_content) that the template does not support: refuse, write it as <think>, or drop.",
    ),
    value_option("--date", "YYYY-MM-DD", "The date for templates that write today's date, such as Llama 3.1's."),
    choice_option(
        "--train-on",
        ["assistant", "last", "completion", "all"],
        "Tokens that are targets: in chats every answer (default), the last answer, or all tokens; in prompt and "
        "completion the completion (default) or all tokens.",
        default=None,
    ),
    value_option(
        "--separator", "TEXT", "Between prompt and completion, with --mode completion.", default="", show_default=False
    ),
    click.option("--bos/--no-bos", default=None, help="Documents begin with BOS (default: as in the tokenizer)."),
    click.option("--eos/--no-eos", default=True, help="Documents end with EOS."),
    click.option(
        "--fast/--no-fast", default=True, help="Encode with faster libraries if they give the same tokens (default)."
    ),
)

media_place_options = grouped(
    "Media",
    value_option("--media-dir", "DIR", "Directory of the media that rows name (default: the rows' directory)."),
    click.option("--media-outside", is_flag=True, help="Rows may name media outside that directory."),
)

media_options = grouped(
    "Media",
    value_option(
        "--processor",
        "DIR",
        "Directory of the model's processor (preprocessor_config.json): packs images, videos and audio too.",
    ),
    value_option(
        "--encoder",
        "FAMILY",
        f"Family of the model: {', '.join(FAMILIES)} (default: as the processor says).",
        "family",
    ),
    media_place_options,
    click.option(
        "--compare-media/--no-compare-media",
        default=True,
        help="Compare a share of the samples with the model's own processor while measuring (default).",
    ),
    value_option("--min-pixels", "N", "Fewest pixels of an image, instead of the processor's.", type=int),
    value_option("--max-pixels", "N", "Most pixels of an image, instead of the processor's.", type=int),
    value_option("--fps", "RATE", "Frames taken per second of video.", type=float),
    value_option("--num-frames", "N", "Frames taken per video, of any duration.", type=int),
    value_option("--min-frames", "N", "Fewest frames that --fps takes.", type=int),
    value_option("--max-frames", "N", "Most frames that --fps takes.", type=int),
    value_option("--video-min-pixels", "N", "Fewest pixels of a video frame; for Qwen3-VL, of all frames.", type=int),
    value_option("--video-max-pixels", "N", "Most pixels of a video frame; for Qwen3-VL, of all frames.", type=int),
    value_option("--sampling-rate", "HERTZ", "Audio samples per second, instead of the processor's.", type=int),
)

media_storage_option = grouped(
    "Media",
    click.option(
        "--media",
        "media_storage",
        type=click.Choice([storage.value for storage in MediaStorage]),
        default=MediaStorage.REFERENCES.value,
        help="What packs hold of media in files: path and fingerprint; their bytes; or the processor's features. "
        "Distinct bytes and features are stored once.",
    ),
)

max_patches_option = grouped(
    "Media",
    value_option("--max-patches", "N", "Most patches per pack: short for --budget patches=N.", type=int),
)

json_option = grouped(
    "Output", click.option("--json", "as_json", is_flag=True, help="Print result, progress and errors as JSON lines.")
)

job_options = grouped(
    "Output",
    json_option,
    click.option("--quiet", is_flag=True, help="No progress."),
    grouped(
        "Job",
        click.option(
            "--num-proc",
            type=click.IntRange(min=1),
            help="Processes (default: all cores, one for small data). Never changes the result.",
        ),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False),
            help="Directory for indexes and measured lengths, but not for notes on tokenizers (default: $BRIMFUL_CACHE or "
            "~/.cache/brimful).",
        ),
    ),
)

engine_option = grouped(
    "Job",
    choice_option(
        "--engine",
        Engine,
        "Where the work runs: processes of this machine, or the running Ray cluster.",
        default="local",
    ),
)

execution_options = grouped(
    "Job",
    engine_option,
    value_option(
        "--task-index",
        "N",
        "Do one share of the job, from 0, for a Slurm array; the share that finishes last joins them.",
        type=int,
    ),
    value_option("--num-tasks", "N", "Shares of the job.", type=int),
)

store_options = grouped("Output", value_option("-o", "DIR", "Directory of the packs.", "--output"))

bad_sample_option = grouped(
    "Source",
    choice_option(
        "--on-bad-sample",
        ["error", "skip"],
        "A malformed row stops the job, or is counted and written to a reject file.",
    ),
)


filter_option = grouped(
    "Source",
    value_option(
        "--filter",
        "NAME[=VALUE]",
        "Leave out samples of poor quality, counted and listed with the rejected rows: "
        + ", ".join(f"{filter_class.form}" for filter_class in FILTERS.values())
        + ". May be given several times.",
        "filters",
        multiple=True,
    ),
)


def _name_and_aliases(algorithm: Algorithm) -> str:
    return f"{algorithm.name} ({', '.join(algorithm.aliases)})" if algorithm.aliases else algorithm.name


capacity_option = grouped(
    "Packing",
    value_option(
        "--max-length",
        "TOKENS",
        "Most tokens per pack; with an alignment, rounded down to a multiple of it.",
        *("--capacity", "--packing-length", "--seq-length", "capacity"),
        type=int,
    ),
)

overflow_option = grouped(
    "Packing", choice_option("--overflow", Overflow, "What to do with samples longer than a pack.")
)

no_target_option = grouped(
    "Packing",
    choice_option(
        "--no-target",
        NoTarget,
        "What to do with samples without a target of the loss, before or after truncation.",
    ),
)

# In the order of --help: the pack, samples that do not fit, then the algorithm.
plan_options = grouped(
    "Packing",
    capacity_option,
    overflow_option,
    no_target_option,
    value_option("--groups", "FILE", "A .npy file with a group for each sample: equal groups stay together, -1 alone."),
    value_option(
        "--algorithm",
        "NAME",
        f"How to pack: {', '.join(map(_name_and_aliases, ALGORITHMS.values()))}.",
        default="auto",
    ),
    value_option("--phases", "TEXT", "Recipe of phased, such as 'powers_of_two; half(min_fill=0.96); finish'."),
    value_option("--num-packs", "NUMBER", "Exact number of packs that spread makes.", type=int),
    value_option(
        "--budget",
        "NAME=MOST",
        "Limit per pack for another quantity: a column of the lengths, samples, or squares. May be given several "
        "times.",
        "budgets",
        multiple=True,
    ),
    value_option(
        "--min-fill", "SHARE", "Packs with less fill are packed again, then come last.", default=0.0, show_default=False
    ),
    click.option("--mix", is_flag=True, help="Exchange segments until packs look like the data, at no cost in fill."),
    value_option(
        "--mixture",
        "FILE.yaml",
        "Sources with weights and paths: samples or packs are drawn by weight (docs/mixtures.md).",
        callback=read_mixture,
        is_eager=True,
    ),
    value_option("--time-limit", "SECONDS", "Limit on the search of optimal (default 60) and auto.", type=float),
    click.option("--seed", default=0, help="Seed of the order of packs and of equally long samples."),
    click.option("--epoch", default=0, help="Pass over the data; each pass combines samples differently."),
    grouped(
        "Alignment",
        value_option("--align", "TOKENS", "Plan for segments padded to a multiple of this.", type=int),
        value_option("--align-total", "TOKENS", "Plan for rows padded to a multiple of this.", type=int),
        value_option("--cp", "RANKS", "Align for context parallelism over this many ranks.", type=int),
        value_option("--tp", "RANKS", "Align for tensor and sequence parallelism over this many ranks.", type=int),
        value_option("--fp8", "FORMAT", "Align rows for a number format: fp8, nvfp4, mxfp8 or blockwise."),
        click.option("--fused-attention", is_flag=True, help="Align rows for cuDNN's fused attention."),
    ),
)
