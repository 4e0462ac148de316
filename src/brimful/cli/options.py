"""Options that several commands share.

Types follow from defaults, and ``--help`` shows defaults by a setting of the group of all commands (``brimful.cli``).
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
        "A column that may be left out though it changes what a sample means (images, label, rejected), or a mark such as "
        "<image> that is plain text.",
        multiple=True,
    ),
    value_option(
        "--prompt", "TEXT", "What the user says in captions, boxes and transcripts, whose rows do not say it."
    ),
    choice_option("--text-unit", ["file", "line"], "What one document of a text file is.", default="file"),
    value_option("--split", "NAME", "Split of a data set that has several (all: every one in a directory)."),
    value_option("--subset", "NAME", "Configuration (subset) of a data set that has several.", "config"),
    value_option("--max-samples", "N", "Take the first N samples: a trial run.", type=int),
)

transform_option = grouped(
    "Source",
    value_option(
        "--transform",
        "MODULE:NAME",
        "A function from a sample to the sample that is trained, which is run before it is encoded; may be given several times.",
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
        "Chats through the chat template, prompt and completion without one, documents, or tokens as they are; by the "
        "format of the rows if auto.",
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
    value_option("--system", "TEXT", "System prompt for chats that have none."),
    choice_option(
        "--reasoning",
        Reasoning,
        "Thoughts (reasoning_content) that the template does not know: refuse, write them as <think>, or drop.",
    ),
    value_option("--date", "YYYY-MM-DD", "The day that templates write which ask for today's, as Llama 3.1's does."),
    choice_option(
        "--train-on",
        ["assistant", "last", "completion", "all"],
        "Tokens that are targets: of a chat every answer (default), the last, or all; of prompt and completion the "
        "completion (default) or all.",
        default=None,
    ),
    value_option(
        "--separator", "TEXT", "Between prompt and completion, with --mode completion.", default="", show_default=False
    ),
    click.option("--bos/--no-bos", default=None, help="Documents begin with BOS (default: as the tokenizer does)."),
    click.option("--eos/--no-eos", default=True, help="Documents end with EOS."),
    click.option(
        "--fast/--no-fast", default=True, help="Encode with faster libraries where they give the same tokens (default)."
    ),
)

media_place_options = grouped(
    "Media",
    value_option("--media-dir", "DIR", "Where rows name media (default: beside their own file)."),
    click.option("--media-outside", is_flag=True, help="Rows may name media outside of that directory."),
)

media_options = grouped(
    "Media",
    value_option(
        "--processor",
        "DIR",
        "Directory of the model's processor (preprocessor_config.json): pictures are packed too.",
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
    value_option("--min-pixels", "N", "Fewest pixels of a picture, instead of the processor's.", type=int),
    value_option("--max-pixels", "N", "Most pixels of a picture, instead of the processor's.", type=int),
    value_option("--fps", "RATE", "Frames taken of each second of a video.", type=float),
    value_option("--num-frames", "N", "Frames taken of a video, however long it is.", type=int),
    value_option("--min-frames", "N", "Fewest frames that --fps takes.", type=int),
    value_option("--max-frames", "N", "Most frames that --fps takes.", type=int),
    value_option("--video-min-pixels", "N", "Fewest pixels of a video's frame, of Qwen3-VL of all together.", type=int),
    value_option("--video-max-pixels", "N", "Most pixels of a video's frame, of Qwen3-VL of all together.", type=int),
    value_option("--sampling-rate", "HERTZ", "Samples of a sound in a second, instead of the processor's.", type=int),
)

media_storage_option = grouped(
    "Media",
    click.option(
        "--media",
        "media_storage",
        type=click.Choice([storage.value for storage in MediaStorage]),
        default=MediaStorage.REFERENCES.value,
        help="What packs hold of media in files: path and fingerprint; their bytes; or ready features of the processor. "
        "Of those each distinct one once.",
    ),
)

max_patches_option = grouped(
    "Media",
    value_option("--max-patches", "N", "Most patches of a pack: short for --budget patches=N.", type=int),
)

json_option = grouped(
    "Output", click.option("--json", "as_json", is_flag=True, help="The result, progress and errors as JSON lines.")
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
            help="Where indexes and measured lengths are kept, but not what is known of tokenizers (default: $BRIMFUL_CACHE or ~/.cache/brimful).",
        ),
    ),
)

engine_option = grouped(
    "Job",
    choice_option(
        "--engine",
        Engine,
        "Who does the work: processes of this machine, or the Ray cluster that runs.",
        default="local",
    ),
)

execution_options = grouped(
    "Job",
    engine_option,
    value_option(
        "--task-index",
        "N",
        "Do one share of the job, from 0, for an array of Slurm; whoever finishes last joins them.",
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
        "Most tokens of a pack; with an alignment, the largest multiple of it within.",
        *("--capacity", "--packing-length", "--seq-length", "capacity"),
        type=int,
    ),
)

overflow_option = grouped(
    "Packing", choice_option("--overflow", Overflow, "What becomes of samples longer than a pack.")
)

no_target_option = grouped(
    "Packing",
    choice_option(
        "--no-target",
        NoTarget,
        "What becomes of samples without a target of the loss, before or after truncation.",
    ),
)

# In the order of --help: the pack, samples that do not fit it, then the algorithm.
plan_options = grouped(
    "Packing",
    capacity_option,
    overflow_option,
    no_target_option,
    value_option("--groups", "FILE", "A .npy file with a group for each sample: equal ones stay together, -1 alone."),
    value_option(
        "--algorithm",
        "NAME",
        f"How to pack: {', '.join(map(_name_and_aliases, ALGORITHMS.values()))}.",
        default="auto",
    ),
    value_option("--phases", "TEXT", "What phased does, as in 'powers_of_two; half(min_fill=0.96); finish'."),
    value_option("--num-packs", "NUMBER", "Packs that spread makes, exactly.", type=int),
    value_option(
        "--budget",
        "NAME=MOST",
        "Most that a pack may hold of something else: a column of the lengths, samples, or squares. May be given "
        "several times.",
        "budgets",
        multiple=True,
    ),
    value_option(
        "--min-fill", "SHARE", "Packs below it are packed again, then come last.", default=0.0, show_default=False
    ),
    click.option("--mix", is_flag=True, help="Exchange segments until packs look like the data, at no cost in fill."),
    value_option(
        "--mixture",
        "FILE.yaml",
        "Sources with weights and paths: samples, or packs, are drawn by them (docs/mixtures.md).",
        callback=read_mixture,
        is_eager=True,
    ),
    value_option("--time-limit", "SECONDS", "Most that optimal (60) and auto may search.", type=float),
    click.option("--seed", default=0, help="Of the order of packs and of equally long samples."),
    click.option("--epoch", default=0, help="Gives a pass over the data its own companions."),
    grouped(
        "Alignment",
        value_option("--align", "TOKENS", "Segments are padded to a multiple of this: plan with it.", type=int),
        value_option("--align-total", "TOKENS", "So are rows.", type=int),
        value_option("--cp", "RANKS", "Align for context parallelism of so many ranks.", type=int),
        value_option("--tp", "RANKS", "Align for tensor and sequence parallelism of so many ranks.", type=int),
        value_option("--fp8", "FORMAT", "Align rows for a number format: fp8, nvfp4, mxfp8 or blockwise."),
        click.option("--fused-attention", is_flag=True, help="Align rows for cuDNN's fused attention."),
    ),
)
