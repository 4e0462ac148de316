"""``examine``: a configuration, its trainer and version, and what the facts say about it."""

import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import lcm, prod
from os import PathLike
from pathlib import Path
from typing import Any

from brimful.base.checks import is_whole_number
from brimful.base.wording import counted, setting, whole
from brimful.doctor.config.documents import MAX_BYTES, SUFFIXES, document_settings, text_of
from brimful.doctor.config.facts import (
    Fact,
    TrainerFacts,
    facts_of_file,
    facts_of_trainer,
    in_range,
    product,
    trainer_ids,
    version_from,
)
from brimful.doctor.config.python_files import notebook_settings, program_settings
from brimful.doctor.config.run_settings import RunSettings
from brimful.doctor.config.settings import Given, GivenSettings, Unknown, flat
from brimful.doctor.config.started_trainings import read_command, script_settings
from brimful.doctor.report import TOPICS, DoctorReport, Evidence, Finding, Judgment, Line
from brimful.errors import SettingsError, SourceNotFoundError

_ASKED_TOPICS = ("packing", "isolation", "positions", "targets", "divisor", "long", "step")
"""Topics that have a line in each report, also where no fact says anything of them."""

_MAX_NOTEBOOK_BYTES = 20 << 20
"""Maximum bytes of a notebook, which holds pictures too."""

_READERS: Mapping[str, Callable[[str, str], GivenSettings]] = {
    **dict.fromkeys((".sh", ".bash", ".slurm", ".sbatch"), script_settings),
    ".py": program_settings,
    ".ipynb": notebook_settings,
}
"""Readers of path and text, by the end of the name; ``documents`` reads YAML, JSON and TOML.
"""

_NO_CONFIGURATIONS = {
    *("pyproject.toml", "setup.py", "package.json", "config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "trainer_state.json"),
}
"""Files of a model, a checkpoint or a package that lie in the same folder."""

_PARALLEL = ("tensor_parallel", "pipeline_parallel", "context_parallel", "sequence_parallel")
"""Roles that say how many ranks share one row."""

_MAX_NAMES = 8
"""Maximum files of a folder that an error names."""


def examine(
    config: str | PathLike[str] | Sequence[str] | Mapping[str, Any] | Any,
    *,
    trainer: str | None = None,
    version: str | None = None,
    ranks: int | None = None,
    facts: str | PathLike[str] | None = None,
) -> DoctorReport:
    """Say what a configuration does to packed samples, by the facts known about its trainer.

    Args:
        config: path of a file (YAML, JSON, TOML, shell, Python, notebook), the words of a command
            line, a mapping of settings, or an object that holds them, such as an ``SFTConfig``.
        trainer: name of a file of facts, such as ``trl``; found by the command or by keys that only
            one trainer has if None.
        version: of the trainer; the installed one if None.
        ranks: number of processes; as the command line says if None.
        facts: path of a file of facts about a trainer that brimful does not know, in TOML.

    Raises:
        SettingsError: the trainer cannot be told, or the configuration or the facts cannot be read.

    >>> report = examine({"packing": True, "per_device_train_batch_size": 4}, trainer="trl", version="1.16.0")
    >>> [line.evidence.value for line in report.lines if line.topic == "packing"]
    ['known']
    """
    return judge(*read_run(config, trainer=trainer, version=version, ranks=ranks, facts=facts))


def read_run(
    config: Any,
    *,
    trainer: str | None = None,
    version: str | None = None,
    ranks: int | None = None,
    facts: str | PathLike[str] | None = None,
) -> tuple[RunSettings, str]:
    """Return the settings of a run, and what was read, in words; arguments as of ``examine``."""
    settings = given_settings(config)
    if facts is not None:
        trainer_facts = facts_of_file(facts)
    else:
        trainer_facts = facts_of_trainer(
            _trainer_id(trainer) if trainer else told_trainer(settings)
        )
    version_text, origin = _version(trainer_facts, version)
    run = RunSettings(
        settings,
        trainer_facts,
        version_from(version_text),
        ranks if ranks is not None else settings.ranks,
    )
    return run, f"{trainer_facts.name} {version_text} ({origin}), {settings.title}"


def judge(run: RunSettings, subject: str) -> DoctorReport:
    """Return a line for each topic and a finding for each fact with a judgment that holds."""
    matches, open_facts = facts_that_hold(run), facts_that_hold(run, None)
    findings = [_finding(fact, run) for fact in matches if fact.judgment]
    unknowns = [place for fact in open_facts for place in run.unknowns(fact.when)]
    unknowns += [
        f"{setting.value} ({setting.where}), which may hold any setting"
        for key, setting in run.given.values.items()
        if isinstance(setting.value, Unknown)
        and (key[0] in "$*" or setting.value.endswith(SUFFIXES))
    ]
    return DoctorReport(
        subject,
        tuple(
            line for topic in TOPICS if (line := _line(topic, matches, open_facts, run)) is not None
        ),
        tuple(dict.fromkeys([*findings, *_misaligned(matches, run)])),
        tuple(dict.fromkeys(f"unknown before the run: {text}" for text in unknowns))
        + tuple(_notes_of_other_versions(matches, run)),
    )


def facts_that_hold(run: RunSettings, truth: bool | None = True) -> list[Fact]:
    """Return the facts of the run's version whose condition it meets, or, for None, of which only
    the run itself knows it.

    An unknown version counts as the newest that was read. Without one, no range judges.
    """
    version = run.version or version_from(run.facts.newest)
    return [
        fact
        for fact in run.facts.facts
        if in_range(fact.versions, version) in ((True,) if fact.judgment else (True, None))
        and run.meets(fact.when) is truth
    ]


def _notes_of_other_versions(matches: list[Fact], run: RunSettings) -> Iterator[str]:
    """Yield what would be wrong if the version, which is unknown, were an older one."""
    if run.version is not None:
        return
    for fact in run.facts.facts:
        if fact.judgment and fact not in matches and run.meets(fact.when):
            text = (
                f"{fact.judgment} if {run.facts.name} is {fact.versions}: {run.filled(fact.says)}"
            )
            yield f"{text} (name your version)"


def told_trainer(settings: GivenSettings) -> str:
    """Return the trainer that a command line names, or the one with keys that no other has.

    Raises:
        SettingsError: none, or more than one.
    """
    scores: dict[str, tuple[int, int]] = {}
    for trainer_id in trainer_ids():
        facts = facts_of_trainer(trainer_id)
        words = max((len(text) for text in facts.commands if text in settings.command), default=0)
        keys = sum(1 for key in facts.keys if settings.get(key) is not None)
        if words or keys:
            scores[trainer_id] = (words, keys)
    # A trainer that builds on another has the other's words too.
    base = {name for trainer_id in scores for name in facts_of_trainer(trainer_id).builds_on}
    scores = {name: score for name, score in scores.items() if name not in base}
    best = [name for name, score in scores.items() if score == max(scores.values())]
    if not best:
        best = _by_shared_keys(settings)
    if len(best) != 1:
        reason = (
            f"it may be one of {', '.join(best)}" if best else "no trainer is known by its keys"
        )
        raise SettingsError(
            f"{settings.title}: {reason}; name it with {setting('trainer')}"
            f"{_ways_of_a_loop(settings) or ': one of ' + ', '.join(best or trainer_ids())}"
        )
    return best[0]


def _ways_of_a_loop(settings: GivenSettings) -> str:
    """Return what helps with a loop of one's own, in words; empty for what is not a script."""
    match = re.search(r"(?:([\w-]+)\.py|-m ([\w.]+))$", settings.title)
    if match is None:
        return ""
    loader = setting("batch", f"{match[1] or match[2]}:loader", python="diagnose(batch)")
    return (
        f"; a loop of your own needs none: {loader} looks at a batch of its loader, and `with "
        "probe(model):` of brimful.doctor, around its steps, at the model"
    )


def _by_shared_keys(settings: GivenSettings) -> list[str]:
    """Return the trainers that know the largest number of keys in a file, packing among them.

    Of trainers that know as many, one that builds on another is left out.
    """
    numbers = {}
    for trainer_id in trainer_ids():
        facts = facts_of_trainer(trainer_id)
        keys = {key for keys in facts.roles.values() for key in keys} | set(facts.defaults)
        switches = (*facts.roles.get("packing", ()), *facts.roles.get("padding_free", ()))
        if any(settings.get(key) is not None for key in switches):
            numbers[trainer_id] = sum(1 for key in keys if settings.get(key) is not None)
    best = [name for name, number in numbers.items() if number == max(numbers.values())]
    return [name for name in best if not set(facts_of_trainer(name).builds_on) & set(best)]


def _trainer_id(name: str) -> str:
    trainer_id = name.lower().replace("-", "_").replace(" ", "_")
    if trainer_id not in trainer_ids():
        raise SettingsError(
            f"no facts about {name!r}: {setting('trainer')} must be one of "
            f"{', '.join(trainer_ids())}; {setting('facts')} brings a file of your own"
        )
    return trainer_id


def given_settings(config: Any) -> GivenSettings:
    """Return the settings that a file, a command line, a mapping or an object holds."""
    if isinstance(config, (str, PathLike)):
        return read_settings(Path(config))
    if isinstance(config, Sequence):
        return read_command([str(word) for word in config])
    title = type(config).__name__
    if is_dataclass(config):
        config = {field.name: getattr(config, field.name) for field in fields(config)}
    elif not isinstance(config, Mapping):
        config = vars(config)
    entries = flat("", dict(config), title)
    # A member of an enum, such as Transformers' strategies, stands for its value.
    return GivenSettings(
        title,
        {key: Given(getattr(entry.value, "value", entry.value), title) for key, entry in entries},
    )


def read_settings(path: str | Path) -> GivenSettings:
    """Return the settings of a file, or of the only configuration in a folder.

    Args:
        path: of YAML, JSON, TOML, a shell script, a Python file or a notebook. The end of the name
            tells which; without a known one, the contents do.

    Raises:
        SourceNotFoundError: no such file, or no configuration in the folder.
        SettingsError: the file has another format, or several in the folder may be meant.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = _only_configuration(file)
    suffix = file.suffix.lower()
    text = text_of(file, _MAX_NOTEBOOK_BYTES if suffix == ".ipynb" else MAX_BYTES)
    if suffix not in SUFFIXES and suffix not in _READERS:
        suffix = _suffix_of(text)
    if suffix in SUFFIXES:
        return GivenSettings(str(file), document_settings(str(file), text, suffix))
    return _READERS[suffix](str(file), text)


def _suffix_of(text: str) -> str:
    """Return the end that a name should have, from the first lines of its text."""
    first = next(line.strip() for line in text.split("\n") if line.strip())
    if first.startswith("#!"):
        return ".py" if "python" in first else ".sh"
    if first.startswith("{"):
        return ".json"
    line = next((line for line in text.split("\n") if line.strip() and line[0] != "#"), "")
    for suffix, pattern in (
        (".toml", r"\[[\w.\"-]+\]\s*(?:#.*)?$"),
        (".yaml", r"[\w\"'./-]+\s*:(?:\s|$)|---|- "),
        (".toml", r"[\w.-]+ = "),
        (".py", r"(?:import|from) \w|@\w|(?:class|def) \w"),
    ):
        if re.match(pattern, line):
            return suffix
    return ".sh"


def _only_configuration(folder: Path) -> Path:
    """Return the one file of a folder that can be a configuration.

    Raises:
        SourceNotFoundError: it has none.
        SettingsError: it has several; the message names them.
    """
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in _NO_CONFIGURATIONS and path.name[0] != "."
    ]
    for suffixes in ((".yaml", ".yml", ".toml"), tuple(_READERS), (".json",)):
        names = [path.name for path in paths if path.suffix.lower() in suffixes]
        if len(names) == 1:
            return folder / names[0]
        if names:
            num_unnamed = len(names) - _MAX_NAMES
            text = ", ".join(names[:_MAX_NAMES]) + (
                f" and {num_unnamed} more" if num_unnamed > 0 else ""
            )
            raise SettingsError(
                f"{folder} is a folder with {counted(len(names), 'configuration')}: {text}: "
                "name one"
            )
    raise SourceNotFoundError(f"{folder} is a folder without a configuration")


def _version(facts: TrainerFacts, version: str | None) -> tuple[str, str]:
    """Return the version that counts, and how it is known."""
    if version is not None:
        if version_from(version) is None:
            raise SettingsError(f"{setting('version', version)} must be a number such as 1.16.0")
        return version, "as named"
    try:
        return importlib.metadata.version(facts.package), "installed"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return (
            "of unknown version",
            f"not installed here; facts up to {facts.newest or 'its source'}",
        )


def _line(topic: str, matches: list[Fact], open_facts: list[Fact], run: RunSettings) -> Line | None:
    """Return the line of a topic: what the first fact says, and what is computed; None if no
    fact says anything, and the topic needs no line.
    """
    fact = next(
        (
            fact
            for fact in run.facts.facts
            if fact.topic == topic and (fact in matches or fact in open_facts)
        ),
        None,
    )
    names = [] if fact is None or fact in matches else [*fact.when]
    if topic == "step" and not _is_count(run["global_batch"]):
        names += ["global_batch", "batch_size", "accumulation", *_PARALLEL]
    if places := run.unknowns(dict.fromkeys(names)):
        return Line(topic, f"unknown before the run: {', '.join(places)}")
    texts = [] if fact is None else [run.filled(fact.says)]
    if topic == "alignment" and (multiples := _multiples(matches, run)):
        names = [
            f"{name} to a multiple of {multiple}"
            for name, multiple in zip(("each sample", "the row"), multiples, strict=True)
            if multiple > 1
        ]
        texts.append(", ".join(names))
    if topic == "step" and (rows := _rows_a_step(run)):
        texts.append(rows)
    if not texts:
        is_asked = topic in _ASKED_TOPICS
        return Line(topic, "no fact says it; a batch may show it") if is_asked else None
    source = "" if fact is None else ", read ".join(filter(None, (fact.source, fact.read)))
    return Line(topic, "; ".join(texts), Evidence.KNOWN, source)


def _finding(fact: Fact, run: RunSettings) -> Finding:
    places = run.places(fact.when)
    return Finding(
        fact.topic,
        Judgment(fact.judgment),
        run.filled(fact.says) + (f": {places}" if places else ""),
        Evidence.KNOWN,
        fact.problem,
        run.filled(fact.change),
        fact.thread,
    )


def _multiples(matches: list[Fact], run: RunSettings) -> tuple[int, int] | None:
    """Return what a segment and a row must be a multiple of; None if no fact says it."""
    fact = next((fact for fact in matches if fact.segment_multiple or fact.row_multiple), None)
    if fact is None:
        return None
    multiples = product(fact.segment_multiple, run) or 1, product(fact.row_multiple, run) or 1
    return multiples if max(multiples) > 1 else None


def _misaligned(matches: list[Fact], run: RunSettings) -> list[Finding]:
    """Return a finding if rows of the greatest length are not a multiple of what they must be."""
    multiples, length = _multiples(matches, run), run["max_length"]
    if multiples is None or not is_whole_number(length):
        return []
    multiple = lcm(*multiples)
    if length % multiple == 0:
        return []
    key = run.keys_of("max_length")[0]
    return [
        Finding(
            "alignment",
            Judgment.SUSPECT,
            f"{run.places({'max_length': None})} is not a multiple of {multiple}",
            Evidence.KNOWN,
            "alignment",
            f"{key}: {length // multiple * multiple or multiple}",
        )
    ]


def _rows_a_step(run: RunSettings) -> str:
    """Return rows and tokens of a step, as far as they are known."""
    total, rows = run["global_batch"], run["batch_size"]
    if _is_count(total):
        return f"{whole(total)} rows a step ({run.keys_of('global_batch')[0]})"
    if not _is_count(rows):
        return ""
    factors = [(rows, "rows")]
    if _is_count(run["accumulation"]):
        factors.append((run["accumulation"], "micro-batches"))
    if (replicas := _data_parallel(run)) is not None:
        factors.append((replicas, "data-parallel ranks"))
    text = " × ".join(f"{number} {name}" for number, name in factors)
    if replicas is None:
        return f"{text} × data-parallel ranks, whose number is unknown"
    number = prod(number for number, _ in factors)
    length = run["max_length"]
    tokens = f", at most {whole(number * length)} tokens" if _is_count(length) else ""
    return f"{text} = {whole(number)} rows a step{tokens}"


def _data_parallel(run: RunSettings) -> int | None:
    if run.ranks is None:
        return None
    return run.ranks // prod(run[role] for role in _PARALLEL if _is_count(run[role])) or None


def _is_count(value: Any) -> bool:
    return is_whole_number(value) and value > 0
