"""Configurations as users have them: whatever the form, the same flat settings come out, each with its place."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from brimful.doctor.config.examine import read_settings
from brimful.doctor.config.settings import Given, GivenSettings, Unknown
from brimful.doctor.config.started_trainings import read_command
from brimful.errors import BrimfulError, SettingsError, SourceNotFoundError


def plain(settings: GivenSettings) -> dict[str, Any]:
    return {key: given.value for key, given in settings.values.items()}


def places(settings: GivenSettings) -> dict[str, str]:
    return {key: given.where for key, given in settings.values.items()}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files in commands and messages are short."""
    monkeypatch.chdir(tmp_path)


def read(text: str, name: str = "run.yaml") -> GivenSettings:
    Path(name).write_text(text, encoding="utf-8")
    return read_settings(name)


def command(line: str) -> GivenSettings:
    return read_command(shlex.split(line))


def refusal(text: str | bytes, name: str = "run.yaml") -> str:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BrimfulError) as caught:
        read_settings(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# One mapping in each form.

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not name.startswith("no_"))
WORDS = st.from_regex(r"[a-z/][a-zA-Z/_.]{2,12}", fullmatch=True).filter(
    lambda word: (
        word.lower() not in ("true", "false", "null", "none", "yes", "off")
        and not word.endswith((".yaml", ".yml", ".json", ".toml"))
    )
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    WORDS,
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, min_size=2, max_size=4))
BLOCKS = st.dictionaries(
    NAMES,
    st.one_of(
        VALUES, st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, min_size=1)), min_size=1)
    ),
    min_size=1,
    max_size=6,
)


def flattened(values: dict[str, Any], block: str = "") -> dict[str, Any]:
    result = {}
    for name, value in values.items():
        result |= flattened(value, f"{block}{name}.") if isinstance(value, dict) else {f"{block}{name}": value}
    return result


def as_toml(values: dict[str, Any], table: str = "") -> str:
    inner = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if name not in inner]
    tables = [f"[{table}{name}]\n{as_toml(value, f'{table}{name}.')}" for name, value in inner.items()]
    return "\n".join(lines + tables) + "\n"


def as_words(values: dict[str, Any], form: str) -> list[str]:
    """Arguments in the form of argparse, with ``=``, or of Hydra."""
    words = ["python", "train.py"]
    for key, value in flattened(values).items():
        texts = [
            text if isinstance(text, str) else json.dumps(text)
            for text in (value if isinstance(value, list) else [value])
        ]
        if form == "hydra":
            words.append(f"{key}={'[' + ','.join(texts) + ']' if isinstance(value, list) else texts[0]}")
        elif form == "equals" and len(texts) == 1:
            words.append(f"--{key.replace('_', '-')}={texts[0]}")
        else:
            words += [f"--{key}", *texts]
    return words


@given(values=BLOCKS)
def test_one_mapping_reads_the_same_in_each_form(values: dict[str, Any]) -> None:
    """Without it a finding depends on the form of the file that a user happens to have."""
    expected = flattened(values)
    assert plain(read(yaml.safe_dump(values))) == expected
    assert plain(read(yaml.safe_dump(values, default_flow_style=True))) == expected
    assert plain(read(json.dumps(values, indent=1), "run.json")) == expected
    assert plain(read(as_toml(values), "run.toml")) == expected
    for form in ("argparse", "equals", "hydra"):
        assert {
            key.replace("-", "_"): value for key, value in plain(read_command(as_words(values, form))).items()
        } == expected


@given(values=BLOCKS)
def test_each_line_is_the_line_of_its_key(values: dict[str, Any]) -> None:
    """Without it the line to change is another one."""
    for name, text in (
        ("a.yaml", yaml.safe_dump(values)),
        ("a.json", json.dumps(values, indent=1)),
        ("a.toml", as_toml(values)),
    ):
        lines = text.split("\n")
        for key, where in places(read(text, name)).items():
            file, _, number = where.partition(":")
            assert file == name
            assert key.rpartition(".")[2] in lines[int(number) - 1]


# YAML, JSON and TOML as they are found.


def test_anchors_merges_and_kinds_of_yaml() -> None:
    """Without it a learning rate is a text, and a merged block is missing."""
    text = """
base: &base
  packing: true
  optim: {lr: 1e-5, betas: [0.9, 1e-3]}
run:
  <<: *base
  optim: {lr: 2E4}          # takes the place of the whole block
  name: "1e-5"
  date: 2026-01-02
  root: ${oc.env:HOME}/x
  path: $HOME
  eval: no
  none: ~
  empty: {}
  8: eight
"""
    run = read(text)
    assert plain(run) == {
        "base.packing": True,
        "base.optim.lr": 1e-5,
        "base.optim.betas": [0.9, 1e-3],
        "run.packing": True,
        "run.optim.lr": 2e4,
        "run.name": "1e-5",
        "run.date": "2026-01-02",
        "run.root": "${oc.env:HOME}/x",
        "run.path": "$HOME",
        "run.eval": False,
        "run.none": None,
        "run.empty": {},
        "run.8": "eight",
    }
    assert run.values["run.optim.lr"].where == "run.yaml:7"
    assert run.values["run.packing"].where == "run.yaml:3"
    assert (run.title, run.command, run.ranks) == ("run.yaml", "", None)


def test_of_several_merged_blocks_the_first_wins() -> None:
    """As YAML says; without it a value is read that the run does not have."""
    run = read("a: &a {x: 1}\nb: &b {x: 2, y: 3}\nc:\n  y: 4\n  <<: [*a, *b]\n")
    assert {key: value for key, value in plain(run).items() if key[0] == "c"} == {"c.x": 1, "c.y": 4}


def test_the_first_document_with_keys_counts() -> None:
    """Without it a file with a preamble has no settings, or the settings of a note."""
    assert plain(read("# note\n---\n- a list\n---\npacking: true\n---\npacking: false\n")) == {"packing": True}


def test_a_repeated_key_has_its_last_value_and_both_lines() -> None:
    """PyYAML does the same in silence: the user sees the first line, and the run obeys the second."""
    run = read("packing: true\nlr: 1\npacking: false\n")
    assert run.values["packing"] == Given(False, "run.yaml:3 (and not line 1)")


def test_tags_create_nothing() -> None:
    """A configuration is data. Without it, reading one may run what it says."""
    run = read("a: !!python/object/apply:os.system ['exit 3']\nb: !custom {c: 1}\nd: !!binary aGk=\n")
    assert plain(run) == {"a": ["exit 3"], "b.c": 1, "d": "aGk="}


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_aliases_that_multiply_end(loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten lines of aliases are 10**9 values: without a limit the reader never comes back."""
    monkeypatch.setattr("brimful.doctor.config.documents._loader", lambda: getattr(yaml, loader))
    blocks = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(10))}}}\n" for n in range(1, 10)
    )
    lists = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    for text in (blocks, lists):
        assert "more than 100,000 values: aliases multiply" in refusal(text)
    assert refusal("a: &a\n  b: *a\n") == "run.yaml: its blocks are nested too deep"
    assert "nest" in refusal("a: " + "[" * 5000 + "\n") or loader == "CSafeLoader"


def test_values_of_json_and_toml() -> None:
    """DeepSpeed's file is nested, and TOML has tables in tables and dates."""
    run = read('{"a": {"b\\"": [1, {"c": {"d": null}}],\n "e": "x: {"},\n\n "a2": true, "a": {"z": 1e9}}', "ds.json")
    assert plain(run) == {'a.b"': [1, {"c": {"d": None}}], "a.e": "x: {", "a2": True, "a.z": 1e9}
    assert places(run) == {'a.b"': "ds.json:1", "a.e": "ds.json:2", "a2": "ds.json:4", "a.z": "ds.json:4"}
    run = read(
        '[a]\nb = """\nx = 1\n"""\nwhen = 2026-01-02\nin = {c = 1,  d.e = 2}\n[a."f.g"]\nh = [1, 2]\n[[t]]\ni = 1\n',
        "run.toml",
    )
    assert plain(run) == {
        "a.b": "x = 1\n",
        "a.when": "2026-01-02",
        "a.in.c": 1,
        "a.in.d.e": 2,
        "a.f.g.h": [1, 2],
        "t": [{"i": 1}],
    }
    assert run.values["a.in.d.e"].where == "run.toml:6"
    assert run.values["a.f.g.h"].where == "run.toml:8"


# What careless users have.


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.yaml", "", "run.yaml is empty"),
        ("run.yaml", " \n\n", "run.yaml is empty"),
        ("run.yaml", "# only a comment\n", "run.yaml has no settings"),
        ("run.yaml", "{}", "run.yaml has no settings"),
        ("run.yaml", "- packing: true\n- b\n", "run.yaml is a list of 2 items: a configuration has names with values"),
        (
            "run.yaml",
            "some words",
            "run.yaml is one text: a configuration has names with values, such as `packing: true`",
        ),
        ("run.yaml", "a: 1\nb: c: d\n", "run.yaml:2: not YAML: mapping values are not allowed"),
        ("run.yaml", "a:\n\tb: 1\n", "run.yaml:2: not YAML: the line has a tab: write spaces"),
        ("run.yaml", "a: 1\n? [x, y]\n: 2\n", "run.yaml:2: a key must be a name"),
        ("run.yaml", "a:\n  <<: 5\n", "run.yaml:2: <<: takes a mapping"),
        ("run.yaml", "a: \x01\n", "run.yaml:1: not YAML: "),
        ("run.json", "[1]", "run.json is a list of 1 item"),
        ("run.json", '{"a": 1,\n // note\n}', "run.json:2: not JSON: Expecting property name"),
        ("run.json", "[" * 100_000, "run.json: its blocks are nested too deep"),
        ("run.toml", "a = 1\nb = \n", "run.toml:2: not TOML: Invalid value"),
        ("run.yaml", b"a: 1\nb: \xff\n", "run.yaml:2: not UTF-8: save the file in UTF-8"),
        ("training_args.bin", b"PK\3\4\0\0", "training_args.bin is binary: name the configuration itself"),
        ("run.yaml", b"a: 1\n" * 300_000, "run.yaml has more than 1,048,576 bytes: it is data, not a configuration"),
        ("run.py", "y = 2\nx = (1\n", "run.py:2: not Python: '(' was never closed"),
        ("run.py", "import os\n", "run.py sets nothing: name the file or command with the settings"),
        ("run.ipynb", '{"a": 1}', "run.ipynb is not a notebook: it has no cells"),
        ("run.sh", "pip install trl\necho done\n", "run.sh starts no training: name the script whose command line has"),
        ("run.sh", "a=1\ntrl sft --x 'y\n", "line 2 of run.sh: a quote is not closed"),
        ("run.sh", "trl sft --x $(date\n", "line 1 of run.sh: a bracket is not closed"),
    ],
)
def test_refusals_are_one_line_that_says_what_is_wrong(name: str, text: str | bytes, message: str) -> None:
    """Without it a user sees a traceback of a library that he has never heard of."""
    assert refusal(text, name).startswith(message)


def test_names_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"^gone.yaml: no such file$"):
        read_settings("gone.yaml")
    with pytest.raises(SourceNotFoundError, match="is a folder without a configuration"):
        read_settings(tmp_path)


def test_a_folder_stands_for_its_only_configuration(tmp_path: Path) -> None:
    """Users name the folder of a run. Two configurations in it are not guessed between."""
    for name in ("pyproject.toml", ".hidden.yaml", "config.json", "notes.txt", "train.py"):
        (tmp_path / name).write_text("x = 1")
    (tmp_path / "run.yml").write_text("packing: true")
    assert read_settings(tmp_path).values == {"packing": Given(True, f"{tmp_path}/run.yml:1")}
    (tmp_path / "other.toml").write_text("packing = false")
    with pytest.raises(SettingsError, match=r"is a folder with 2 configurations: other.toml, run.yml: name one$"):
        read_settings(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_files_from_windows(encoding: str, end: str) -> None:
    """Without it the first key of a file from PowerShell is unknown, or each value ends with a carriage return."""
    lines = {"run.yaml": ["packing: true", "lr: 1"], "run.json": ['{"packing": true,', '"lr": 1}']}
    lines |= {"run.toml": ["packing = true", "lr = 1"], "run.sh": ["trl sft --packing true \\", "  --lr 1"]}
    lines |= {"run.py": ["SFTConfig(packing=True,", "lr=1)"]}
    for name, texts in lines.items():
        Path(name).write_bytes((end.join(texts) + end).encode(encoding))
        run = read_settings(name)
        assert (run.get("packing").value, run.get("lr").value) == (True, 1)
        assert "2" in run.get("lr").where


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("packing: true\n", True),
        ("# note\n---\npacking: 1\n", 1),
        ('{"packing": 2}', 2),
        ("[a]\npacking = 3\n", 3),
        ("packing = 4\n", 4),
        ("#!/bin/sh\ntrl sft --packing 5\n", 5),
        ("#!/usr/bin/env python3\nSFTConfig(packing=6)\n", 6),
        ("# note\nfrom trl import SFTConfig\nSFTConfig(packing=7)\n", 7),
        ("NPROC_PER_NODE=2 swift sft \\\n --packing 8\n", 8),
        ("echo start: now\ntrl sft --packing 9\n", 9),
    ],
)
def test_contents_tell_a_file_without_a_known_end(text: str, expected: object) -> None:
    """Job files are called ``train.job``, or ``config``."""
    for name in ("config", "train.job"):
        assert read(text, name).get("packing").value == expected


# Settings by key.


def test_get_finds_the_one_nested_key() -> None:
    """Facts name keys as their trainers do, and files put blocks around them."""
    run = read("a:\n  max-length: 1\n  b: {packing: 2}\nc: {packing: 3, deep: {only: 4}}\ntop: 5\n")
    ones = {"a.max_length": 1, "max_length": 1, "b.packing": 2, "a.b.packing": 2, "deep.only": 4, "only": 4, "top": 5}
    assert {key: run.get(key).value for key in ones} == ones
    assert [run.get(key) for key in ("Top", "ly", "deep")] == [None] * 3


def test_of_nested_keys_with_two_values_none_is_known_and_both_are_said() -> None:
    """Without it the default of the trainer is reported, which no line of the file has."""
    run = read("a: {packing: true, lr: 1}\nb:\n  packing: false\n  lr: 1\n")
    assert run.get("lr") == Given(1, "run.yaml:1")
    assert isinstance(run.get("packing").value, Unknown)
    assert run.get("packing") == Given("True or False", "run.yaml:1, run.yaml:3")
    assert [run.get(key).value for key in ("a.packing", "b.packing")] == [True, False]


def test_an_exact_key_is_preferred_to_a_nested_one() -> None:
    run = read("packing: 1\nblock: {packing: 2}\n", "RUN.YAML")
    assert run.get("packing").value == 1
    outside = GivenSettings("", {"environ.packing": Given(1, ""), "calls.f.lr": Given(2, "")})
    assert (outside.get("packing"), outside.get("lr")) == (None, None)
    assert outside.get("environ.packing").value == 1


# Command lines.


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("trl sft --packing --max_length 8192 --lr=1e-5", {"packing": True, "max_length": 8192, "lr": 1e-5}),
        (
            "trl sft --no_packing --no-liger --a.no_b --no_c true",
            {"packing": False, "liger": False, "a.b": False, "no_c": True},
        ),
        (
            "swift sft --dataset a#5 b 'c d' --split -0.5 --x -",
            {"dataset": ["a#5", "b", "c d"], "split": -0.5, "x": "-"},
        ),
        (
            "trl sft --eval_strategy no --report_to none --x None --y null --z ''",
            {"eval_strategy": "no", "report_to": "none", "x": None, "y": None, "z": ""},
        ),
        (
            """trl sft --model_init_kwargs '{"attn_implementation": "sdpa", "a": {"b": [1, true]}}'""",
            {"model_init_kwargs.attn_implementation": "sdpa", "model_init_kwargs.a.b": [1, True]},
        ),
        (
            "python train.py data.n=1 +a.b=[x,y] ++c='{d: 2}' e=null f='\"q\"' g/h@i=j k=",
            {"data.n": 1, "a.b": ["x", "y"], "c.d": 2, "e": None, "f": "q", "g/h@i": "j", "k": ""},
        ),
        ("python train.py a=1 b=2 ~a ~c", {"b": 2}),
        (
            "python train.py --flag model.path=x --budget samples=2",
            {"flag": True, "model.path": "x", "budget": "samples=2"},
        ),
        ("trl sft --a 1 --a 2 --b-c 3", {"a": 2, "b_c": 3}),
        ("trl sft --text '[unclosed' --b '{'", {"text": "[unclosed", "b": "{"}),
        ("A=1 trl sft --b 2", {"b": 2, "environ.A": 1}),
    ],
)
def test_arguments(line: str, values: dict[str, Any]) -> None:
    """Each form of an argument that trainers take. Without it a setting is missing, or is another one."""
    assert plain(command(line)) == values
    assert set(places(command(line)).values()) <= {"command line"}


@pytest.mark.parametrize(
    ("line", "program", "ranks"),
    [
        ("trl sft --x 1", "trl sft", None),
        ("/opt/bin/trl sft --x 1", "trl sft", None),
        ("python -u -W ignore -m verl.trainer.sft_trainer x=1", "python -m verl.trainer.sft_trainer", None),
        ("python3.11 a/train.py llama --x 1", "python a/train.py llama", None),
        ("./train.py --x 1", "python ./train.py", None),
        ("NPROC_PER_NODE=8 swift sft --x 1", "swift sft", 8),
        ("env NNODES=2 NPROC_PER_NODE=4 megatron sft --x 1", "megatron sft", 8),
        ("WORLD_SIZE=16 nohup python train.py --x 1", "python train.py", 16),
        ("torchrun train.py --x 1", "python train.py", 1),
        ("torchrun --standalone --nproc_per_node=8 --nnodes 2 train.py --x 1", "python train.py", 16),
        ("torchrun --nproc-per-node gpu train.py --x 1", "python train.py", None),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 train.py --x 1", "python train.py", None),
        ("torchrun --nproc_per_node $N -m a.b --x 1", "python -m a.b", None),
        ("torchrun $ARGS train.py --x 1", "python train.py", 1),
        ("python -m torch.distributed.run --nproc_per_node 3 train.py --x 1", "python train.py", 3),
        ("srun -N 2 --ntasks=4 torchrun --nnodes 2 --nproc_per_node 4 train.py --x 1", "python train.py", 8),
        ("uv run --with trl trl dpo --x 1", "trl dpo", None),
        ("uv run train.py --x 1", "python train.py", None),
        ("nohup -x mytrain --x 1", "mytrain", None),
        ("$LAUNCH -m a.b --x 1", "python -m a.b", None),
        ("$LAUNCH --flag python train.py --x 1", "python train.py", None),
        ("accelerate launch --multi_gpu --num_processes 4 --num_machines 2 train.py --x 1", "python train.py", 4),
        ("accelerate launch -m axolotl.cli.train --x 1", "python -m axolotl.cli.train", None),
        ("accelerate launch --module axolotl.cli.train --x 1", "python -m axolotl.cli.train", None),
        ("deepspeed --num_gpus 8 --num_nodes 2 train.py --x 1", "python train.py", 16),
        ("deepspeed --include localhost:0,1,3 train.py --x 1", "python train.py", 3),
        ("deepspeed --include worker-0:0,1@worker-1:2 train.py --x 1", "python train.py", 3),
        ("deepspeed train.py --x 1", "python train.py", None),
        (
            "ray job submit --address http://x --runtime-env=a.yaml -- python3 -m verl.trainer.main_ppo x=1",
            "python -m verl.trainer.main_ppo",
            None,
        ),
        ("python mason.py --gpus 8 -- accelerate launch --num_processes 8 finetune.py --x 1", "python finetune.py", 8),
        ("conda run -n env python train.py --x 1", "python train.py", None),
        ("bash -lc 'torchrun --nproc_per_node 2 train.py --x 1'", "python train.py", 2),
        ("srun --export=ALL bash -c 'cd /x && trl sft --x 1'", "trl sft", None),
    ],
)
def test_programs_and_ranks(line: str, program: str, ranks: int | None) -> None:
    """The trainer is told by its program, and facts about equal steps need the number of ranks."""
    run = command(line)
    assert (run.command, run.ranks, run.get("x").value) == (program, ranks, 1)
    assert [key for key in run.values if not key.startswith(("environ.", "accelerate."))] == ["x"]


@pytest.mark.parametrize(
    "line",
    [
        "trl sft --config run.yaml --max_length 2",
        "axolotl train run.yaml --max-length 2",
        "llamafactory-cli train run.yaml max_length=2",
        "accelerate launch --num_processes 2 train.py run.yaml --max_length=2",
        "torchrun -m torchtitan.train --job.config_file run.yaml --max_length 2",
        "python train.py --config_path . --config_name run max_length=2",
        "python train.py --config-path=. --config-name=run.yaml max_length=2",
        "CONFIG_FILE=./run.yaml ./run_train.sh --max_length 2",
    ],
)
def test_arguments_override_the_file_that_a_command_names(line: str) -> None:
    """Without it the file is judged, and the run does other things."""
    Path("run.yaml").write_text("packing: true\nmax_length: 1\nkw: {a: 1, b: 2}\n")
    run = command(line)
    assert run.get("packing") == Given(True, "run.yaml:1")
    assert run.get("max_length") == Given(2, "command line")
    assert run.get("kw.b").value == 2


def test_a_mapping_takes_the_place_of_its_block_and_a_dotted_key_of_one_value() -> None:
    Path("run.yaml").write_text("kw: {a: 1, b: 2}\nother: 3\n")
    assert plain(command("""trl sft --config run.yaml --kw '{"a": 5}'""")) == {
        "other": 3,
        "config": "run.yaml",
        "kw.a": 5,
    }
    assert plain(command("python t.py --config run.yaml kw.a=5 ~other")) == {"kw.b": 2, "config": "run.yaml", "kw.a": 5}
    assert "kw.b" not in command("python t.py --config run.yaml ~kw").values


def test_a_file_that_a_command_names_must_be_there() -> None:
    """Without it the defaults of the trainer are reported as the settings of the run."""
    with pytest.raises(SourceNotFoundError, match=r"^command line: gone.yaml: no such file$"):
        command("trl sft --config gone.yaml --packing true")
    with pytest.raises(SourceNotFoundError, match=r"^command line: gone.yaml: no such file$"):
        command("axolotl train gone.yaml")
    # Names in a registry, outputs, and Hydra's files in an installed package are no such files.
    assert command("torchrun -m torchtitan.train --config llama3_8b").get("config").value == "llama3_8b"
    assert command("python t.py --out gone.json a b.yaml").get("out").value == ["gone.json", "a", "b.yaml"]
    assert command("python t.py --config-name gone x=1").get("x").value == 1
    with pytest.raises(SettingsError, match="the command line has no program"):
        read_command([])


def test_the_file_of_accelerate_tells_the_ranks() -> None:
    """Its settings are not the trainer's, although some have the same names."""
    Path("acc.yaml").write_text("num_processes: 8\nmixed_precision: bf16\n")
    run = command("accelerate launch --config_file acc.yaml --num_machines 1 train.py --x 1")
    assert (run.ranks, run.get("accelerate.mixed_precision").value, run.get("mixed_precision")) == (8, "bf16", None)
    assert command("accelerate launch --config_file acc.yaml --num_processes 2 t.py --x 1").ranks == 2
    assert command("accelerate launch --config_file gone.yaml t.py --x 1").ranks is None


# Shell scripts.


def script(text: str) -> GivenSettings:
    return read(text, "run.sh")


def test_a_script_with_arrays_defaults_and_noise() -> None:
    """A launch script as trainers ship them."""
    run = script(
        """#!/bin/bash
set -xeuo pipefail
#SBATCH --nodes=2
export NCCL_DEBUG=INFO
SCRIPT_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MODEL=${1:-"Qwen/Qwen3-8B"}   # the model
GPUS=${GPUS:-8}; NODES="2"
: ${LR:=1e-5}
cat > notes.txt <<'EOF'
a note
trl sft --packing false "unclosed
EOF
if true; then
	cat <<-END | sort
	trl sft 'unclosed
	END
fi
ARGS=(
    --packing true        # comments are legal here
    # --max_length 1
    --max_length $((4 * 1024))
)
if [ -n "$EXTRA" ]; then
    ARGS+=(--extra 1)
fi
ARGS+=(--name "two words" 'a$MODEL')
echo "starting --packing false --a 1 --b 2 --c 3 --d 4 --e 5"
pip install --upgrade trl && mkdir -p out
swift export --adapters out --a 1 --b 2 --c 3 --d 4 --e 5 --f 6 --g 7 --h 8 --i 9
OMP_NUM_THREADS=8 torchrun --nproc_per_node=${GPUS} --nnodes "$NODES" \\
    $SCRIPT_DIR/train.py \\
    --model "$MODEL"'-x' --lr ${LR} \\
    "${ARGS[@]}" ${UNKNOWN_ARGS[@]} --host $HOSTNAME \\
    --steps $STEPS $MORE "$@" 2>&1 | tee -a log.txt
python eval.py --packing false
"""
    )
    assert plain(run) == {
        "model": "Qwen/Qwen3-8B-x",
        "lr": 1e-5,
        "packing": True,
        "max_length": 4096,
        "name": ["two words", "a$MODEL"],
        "extra": "$ARGS (set on line 24 of run.sh)",
        "host": "$HOSTNAME",
        "steps": "$STEPS",
        "$MORE": "$MORE",
        "environ.NCCL_DEBUG": "INFO",
        "environ.OMP_NUM_THREADS": 8,
    }
    assert (run.title, run.command, run.ranks) == ("run.sh", "python ./train.py", 16)
    assert run.values["packing"].where == "line 19 of run.sh"
    assert run.values["lr"].where == "line 32 of run.sh"
    unknown = {key for key, given in run.values.items() if isinstance(given.value, Unknown)}
    assert unknown == {"extra", "host", "steps", "$MORE"}


@pytest.mark.parametrize(
    "between",
    ["# --b 2 \\", "    # a note", "", "--b 2 \\ "],
    ids=["comment", "note", "empty", "blank after backslash"],
)
def test_what_bash_does_not_pass_is_not_read(between: str) -> None:
    """Bash ends the command there, trains without the rest, and complains after hours."""
    run = script(f"trl sft --a 1 \\\n{between}\n    --packing true\n")
    assert (run.get("a").value, run.get("packing")) == (1, None)
    assert run.title == "run.sh, whose command ends before line 3 of run.sh: bash passes nothing from there on"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A='--y 1 --x 4'\nCMD=\"trl sft $A\"\n$CMD", 4),
        ('CMD="trl sft \\\n --x 5"\neval $CMD', 5),
        ("for A in 1 2; do trl sft --x $A; done", "$A (set on line 1 of run.sh)"),
        ("trl sft --x $(nproc)", "$(nproc)"),
        ("trl sft --x a\\ b", "a b"),
        ("{ trl sft --x 1; } &", 1),
        ("(trl sft --x 1)", 1),
        ("sleep 1; time trl sft --x 1 >log 2>&1 </dev/null", 1),
        ("trl sft --x 1 <<<text", 1),
        ('f() {\n  trl sft --x 1 "$@"\n}\nf --y 2', 1),
        ("if true; then trl sft --x 1; else trl sft --y 2; fi", "1 or not set"),
        ("python a.py --y 1 --z 2\ntorchrun b.py --x 3", 3),
    ],
)
def test_the_training_of_a_script(text: str, value: object) -> None:
    """A value that is known is written out; one that depends on the machine or a branch is unknown."""
    given = script(text).get("x")
    assert given.value == value
    assert isinstance(given.value, Unknown) == ("$" in str(value) or " or " in str(value))


@pytest.mark.parametrize(
    "condition", ["true", "false", "[ -d data ]", '[ "$B" = fsdp ]', "[[ $N -gt 8 ]]", "(( N > 8 ))"]
)
@pytest.mark.parametrize(
    "statement",
    [
        "if {}\nthen A=1; else A=2; fi",
        "A=1\nif {}; then\n if true; then A=2; fi\nfi",
        "A=1\n{} && A=2",
        "A=1\n{} ||\n\n A=2",
        "A=1\nwhile {}; do A=2; done",
        "A=1\nuntil {}; do A=2; done",
        "A=1\nf() {{ if {}; then A=2; fi; }}\nf",
        "A=1\n{} && {{\n A=2\n}}",
        "A=1\nif {}; then read A; fi",
    ],
)
def test_no_condition_is_looked_at(statement: str, condition: str) -> None:
    """The value of one branch is not the run's, and nothing is said of it."""
    run = script(f"B=fsdp N=8\n{statement.format(condition)}\ntrl sft --x $A --y $B")
    assert isinstance(run.get("x").value, Unknown)
    assert re.fullmatch(r"\$A \(set on line \d of run.sh( or later)?\)", run.get("x").value)
    assert (run.get("y").value, run.get("z")) == ("fsdp", None)


def test_scripts_that_start_and_source_others() -> None:
    Path("lib").mkdir()
    Path("lib/env.sh").write_text("LENGTH=64\nexport NPROC_PER_NODE=2\n")
    Path("lib/train.sh").write_text('swift sft --model $MODEL "$@" --rank x$1_run --lr ${2:-1}\n')
    run = script('source lib/env.sh\nexport MODEL=qwen\nbash lib/train.sh --max_length $LENGTH "a b"\n')
    assert plain(run) == {
        "model": "qwen",
        "max_length": [64, "a b"],
        "rank": "x$1_run",
        "lr": "${2:-1}",
        "environ.MODEL": "qwen",
        "environ.NPROC_PER_NODE": 2,
    }
    assert run.ranks == 2
    run = script(
        f'export MODEL=qwen\nDIR=$(cd -- "$(dirname -- "$0")" && pwd)\nbash "{Path.cwd()}/$DIR/lib/train.sh" --lr 1'
    )
    assert (run.get("model").value, run.get("lr").value) == ("qwen", "${2:-1}")
    run = command("bash lib/train.sh --packing true")
    assert run.get("packing").value is True
    assert run.get("model").where == "line 1 of lib/train.sh"
    assert command("NPROC_PER_NODE=3 bash -c 'swift sft --x $NPROC_PER_NODE'").ranks == 3
    with pytest.raises(SettingsError, match=r"bash gone.sh starts no training that can be read from here"):
        command("bash gone.sh --packing true")


@pytest.mark.parametrize(
    "text",
    [
        "bash loop.sh\n" * 30,
        "A='" + "eval $A;" * 30 + "'\n$A",
        "A=x\n" + "A=$A$A\n" * 80 + "echo $A",
        "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 80,
    ],
    ids=["script", "eval", "text", "array"],
)
def test_scripts_that_multiply_end(text: str) -> None:
    """A script that starts itself thirty times is 30**5 scripts in five steps."""
    assert refusal(text, "loop.sh").startswith("loop.sh starts no training")


def test_files_of_a_script_are_looked_for_from_its_folder_up(tmp_path: Path) -> None:
    """Scripts are written for the root of their repository, and doctor is started anywhere."""
    (tmp_path / "examples" / "a").mkdir(parents=True)
    (tmp_path / "examples" / "run.yaml").write_text("packing: true\n")
    for name in ("examples/run.yaml", "run.yaml", "$HERE/../run.yaml"):
        Path("examples/a/run.sh").write_text(f'HERE=$(dirname "$0")\ntrl sft --config {name}\n')
        assert read_settings("examples/a/run.sh").get("packing").value is True
    Path("examples/a/run.sh").write_text("trl sft --config gone.yaml\n")
    with pytest.raises(SourceNotFoundError, match=r"^line 1 of examples/a/run.sh: gone.yaml: no such file$"):
        read_settings("examples/a/run.sh")
    Path("examples/a/run.sh").write_text("trl sft --config $DIR/gone.yaml --x 1\n")
    assert read_settings("examples/a/run.sh").get("x").value == 1


# Python.


def python(text: str) -> GivenSettings:
    return read(text, "train.py")


def test_keywords_names_and_blocks_of_python() -> None:
    """A training script as in TRL's documentation."""
    run = python(
        """import os, torch
from trl import SFTConfig, SFTTrainer
rows, half = 4096, 1
LENGTH = 4 * 2**10
kwargs = dict(attn_implementation="sdpa", dtype=torch.bfloat16)
common = {"logging_steps": 5, "seed": 1 if rows else 2}
args = SFTConfig(
    packing=True, max_length=LENGTH,
    model_init_kwargs=kwargs, output_dir=f"out-{LENGTH}", neg=-1, **common,
)
trainer = SFTTrainer("Qwen/Qwen3-8B", args=args, train_dataset=load_dataset("x", split="train"))
trainer = train_on_responses_only(trainer, response_part="<a>")
os.environ["NPROC"] = "2"
"""
    )
    values = plain(run)
    expected = {
        "packing": True,
        "SFTConfig.packing": True,
        "max_length": 4096,
        "model_init_kwargs.attn_implementation": "sdpa",
        "SFTConfig.model_init_kwargs.dtype": "computed",
        "output_dir": "computed",
        "neg": -1,
        "logging_steps": 5,
        "seed": "computed",
        "args.packing": True,
        "SFTTrainer.args.max_length": 4096,
        "calls.train_on_responses_only": True,
        "calls.train_on_responses_only.response_part": "<a>",
        "calls.SFTTrainer": True,
        "calls.load_dataset.split": "train",
        "environ.NPROC": "2",
    }
    assert {key: values.get(key) for key in expected} == expected
    assert not {"split", "response_part"} & set(values)
    unknown = {key.rpartition(".")[2] for key, given in run.values.items() if isinstance(given.value, Unknown)}
    assert unknown == {"dtype", "output_dir", "seed", "train_dataset"}
    assert run.command == "import torch trl"
    assert run.values["max_length"].where == "train.py:8"
    assert run.values["logging_steps"].where == "train.py:6"


@pytest.mark.parametrize(
    ("text", "value"),  # None is unknown
    [
        ("n = 1\nn = 2\nAConfig(x=n)", None),
        ("def f(n):\n  n = 3\n  AConfig(x=n)", None),
        ("for n in [1]: AConfig(x=n)", None),
        ("n = 1\nn += 1\nAConfig(x=n)", None),
        ("n = 5\nclass A:\n  n: int = 6\nAConfig(x=n)", None),
        ("AConfig(x=1)\nBConfig(x=2)", None),
        ("AConfig(x=1)\nBConfig(x=1)", 1),
        ("AConfig(x=1)\nMyTrainer(x=2)\nModel.from_pretrained('m', x=3)", 1),
        ("a = AConfig(x=1)\na.x = 2", 2),
        ("a.x = 1\na.x = 2", None),
        ("a['x'] = 3", 3),
        ("a.b[0].x = 3", None),
        ("self.x = 3", None),
        ("class Config:\n  x: int = 4\nConfig(x=5)", 5),
        ("n = [1]\nn.append(2)\nAConfig(x=n)", None),
        ("from m import n\ndef f(): n = 2\nAConfig(x=n)", None),
        ("n = {'x': 1}\nn['x'] = 2\nAConfig(**n)", 2),
        ("if a: n = 1\nelse: n = 2\nAConfig(x=n)", None),
        ("AConfig(x=n) if a else AConfig(x=2)", None),
        ("if a: AConfig(x=1)\nelse: AConfig(z=1)", None),
        ("if a: AConfig(x=1)\nelse: AConfig(x=1, z=1)", 1),
        ("c = AConfig(x=1)\nif a: c.x = 2", None),
        ("c = AConfig(x=1)\ntry: f()\nexcept E: c.x = 2", None),
        ("if __name__ == '__main__': c.x = 2", 2),
        ("AConfig(x=1)\nif False: AConfig(x=2)", 1),
        ("if a: n = dict(x=1)\nelse: n = dict(x=1, z=2)\nAConfig(**n)", 1),
        ("class Config:\n  x: int = 4\nAConfig(x=Config().x)", None),
        ("AConfig(x=args.x)", None),
        ("AConfig(**kwargs)\nBConfig(x=1)", 1),
        ("cfg = {'x': 7}", 7),
        ("cfg = dict(x=7)", 7),
        ("cfg = OmegaConf.create({'x': 7})", 7),
        ("AConfig(x=open('f').read())", None),
        ("AConfig(x=__import__('os').system('exit 1'))", None),
        ("AConfig(x=9**9**9)", None),
        ("AConfig(x=[1, (2, 3)])", [1, [2, 3]]),
        ("AConfig(x=[None, b'a'])", [None, "b'a'"]),
        ("AConfig(x=not True)", None),
        ("AConfig(x=-'a')", None),
        ("AConfig(x={'y': 1, **z})", None),
        ("AConfig(x=1 / 0)", None),
        ("tokenizer(text, x=1)", None),
    ],
)
def test_values_of_python(text: str, value: object) -> None:
    """Only what a reader can be sure of is a setting; nothing is run."""
    Path("f").write_text("1")
    run = python(f"AnyConfig(y=1)\n{text}\n")
    given = run.get("x")
    is_read = given is not None and not isinstance(given.value, Unknown)
    assert (given.value if is_read else None) == value
    if given is not None and not is_read:
        assert re.match(r"train.py:\d", given.where)


def test_nested_calls_are_blocks() -> None:
    """As in recipes of Megatron-Bridge."""
    run = python(
        """cfg = recipe(packed_sequence=True)
model = GPTModelProvider(context_parallel_size=2)
ConfigContainer(model=model, dataset=DatasetConfig(seq_length=64, specs=PackedSpecs(size=64, pad_to=[2])))
cfg.model.tensor_model_parallel_size = 2
cfg.dataset = DatasetConfig(seed=3)
"""
    )
    for key, value in {
        "model.context_parallel_size": 2,
        "model.tensor_model_parallel_size": 2,
        "tensor_model_parallel_size": 2,
        "dataset.seq_length": 64,
        "dataset.specs.size": 64,
        "PackedSpecs.pad_to": [2],
        "dataset.seed": 3,
        "calls.recipe.packed_sequence": True,
    }.items():
        assert run.get(key).value == value
    assert run.get("seq_length").where == "train.py:3"


def test_names_that_refer_to_names_end() -> None:
    """Values of names are put into each other, and doubling eighty times is 10**24."""
    run = python("a = dict(b=a, x=1)\nAConfig(y=1, **a)\n")
    assert run.get("x").value == 1
    for first, double in (("'x'", "a{0} + a{0}"), ("'x'", "f'{{a{0}}}{{a{0}}}'"), ("['x']", "[a{0}, a{0}]")):
        lines = [f"a{n + 1} = {double.format(n)}" for n in range(80)]
        run = python(f"a0 = {first}\n" + "\n".join(lines) + "\nAConfig(x=a2, y=a80)\n")
        assert run.get("x").value in ("computed", [[["x"], ["x"]], [["x"], ["x"]]])
        assert isinstance(run.get("y").value, Unknown)
    blocks = "\n".join(f"a{n + 1} = dict({', '.join(f'k{i}=a{n}' for i in range(9))})" for n in range(10))
    assert "more than 100,000 settings" in refusal(f"a0 = dict(x=1)\n{blocks}\nAConfig(x=a10)\n", "train.py")


def notebook(*cells: str) -> GivenSettings:
    entries = [{"cell_type": "code", "source": [f"{line}\n" for line in cell.split("\n")]} for cell in cells]
    return read(json.dumps({"cells": [{"cell_type": "markdown", "source": "# x"}, *entries]}), "run.ipynb")


def test_cells_of_a_notebook() -> None:
    """Magic and shell lines are not Python, and a cell of another language spoils no other."""
    run = notebook(
        "%pip install trl\n!nvidia-smi\nfrom trl import SFTConfig\nrows = 64",
        "this is no Python",
        "!echo it's",
        "%%writefile data.json\n[1]\n",
        "args = SFTConfig(\n    packing=True,\n    max_length=rows)",
    )
    assert run.get("packing") == Given(True, "line 2 in cell 6 of run.ipynb")
    assert run.get("max_length").value == 64
    assert run.command == "import trl"


def test_a_notebook_that_starts_a_command() -> None:
    """Notebooks of LLaMA-Factory and Axolotl write a file, and start a program with it."""
    Path("RUN.YML").write_text("packing: true\n")
    run = notebook(
        "%%writefile run.yaml\npacking: true\nlr: 1\n",
        "%env NPROC_PER_NODE=2\n!llamafactory-cli train run.yaml \\\n    lr=2",
    )
    assert run.get("packing") == Given(True, "cell 2 of run.ipynb")
    assert (run.get("lr").value, run.command, run.ranks) == (2, "llamafactory-cli train", 2)
    assert command("trl sft --config RUN.YML").get("packing").value is True
    run = notebook("x = 1", "%%bash\ntrl sft --packing true\n")
    assert (run.get("packing").value, run.command) == (True, "trl sft")


# Anything at all.


@given(
    text=st.text(st.sampled_from("ab1=:-#'\"`$(){}[]<>|&;\\\n\t !*@~+%,."), max_size=60),
    name=st.sampled_from(["x.yaml", "x.json", "x.toml", "x.sh", "x.py", "x.ipynb", "x"]),
)
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    """Without it a file of another program ends in a traceback, or never ends."""
    try:
        assert read(text, name).values
    except BrimfulError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
