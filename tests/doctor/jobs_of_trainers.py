"""Three steps of real trainers on real chats, packed as their users pack, right and each with a fault that a user can have.

A job is made from a folder, a model with its tokenizer, chats, and the name of its fault, which is empty for the job as it
should be.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

STEPS = 3

SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "seed": 0,
}
"""Arguments of every job on ``Trainer`` of Transformers."""


@dataclass
class Place:
    """What every job is made from.

    Attributes:
        model: folder of the model and its tokenizer.
        chats: file of chats, one a line.
        folder: for outputs.
    """

    model: Path
    chats: Path
    folder: Path


@dataclass
class Job:
    """A job that has not begun.

    Attributes:
        config: what ``examine`` reads.
        trainer: the name of its facts.
        start: trains.
    """

    config: Any
    trainer: str
    start: Callable[[], Any]


@dataclass
class Run:
    """A job that has ended.

    Attributes:
        losses: of its micro-batches.
        batch: the first one of its loader.
        tokenizer: of the trainer.
        report: of the probe; None without it.
    """

    is_probed: bool
    losses: list[float] = field(default_factory=list)
    batch: Any = None
    tokenizer: Any = None
    report: Any = None

    def record(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a training step that keeps its loss."""

        def recorded(*args: Any, **options: Any) -> Any:
            loss = step(*args, **options)
            self.losses.append(loss.item())
            return loss

        return recorded


@contextmanager
def watched(is_probed: bool) -> Iterator[Run]:
    """Watch the trainer that trains in here: ``Trainer`` of Transformers, or any that is built on it."""
    import transformers

    from brimful.doctor import ProbeCallback

    run, train = Run(is_probed), transformers.Trainer.train

    def watched_train(trainer: Any, *args: Any, **options: Any) -> Any:
        trainer.training_step = run.record(trainer.training_step)
        callback = ProbeCallback(trainer)
        if is_probed:
            trainer.add_callback(callback)
        result = train(trainer, *args, **options)
        run.report = callback.report
        run.batch, run.tokenizer = next(iter(trainer.get_train_dataloader())), trainer.processing_class
        return result

    with patch.object(transformers.Trainer, "train", watched_train):
        yield run


def write_model(folder: Path, tokenizer: Path) -> None:
    """Write a tiny Qwen2 of three layers and a real tokenizer into a folder, as ``from_pretrained`` reads them."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    words = AutoTokenizer.from_pretrained(tokenizer)
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def real_chats(data_dir: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield dialogues of two speakers that take turns, each of at most eight messages."""
    path = data_dir / "text" / "sgd_train_dialogues.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from itertools.islice(filter(None, map(_short_chat, lines)), count)


def _short_chat(line: str) -> dict[str, Any] | None:
    turns = [
        {"role": turn["role"], "content": turn["content"]}
        for turn in json.loads(line)["messages"]
        if turn["role"] in ("user", "assistant") and turn["content"]
    ]
    takes_turns = [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
    return {"messages": turns} if takes_turns and len(turns) <= 8 else None


def model_of(place: Place, attention: str = "sdpa") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(place.model, attn_implementation=attention, dtype="float32")


def tokenizer_of(place: Place) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(place.model)


def team_attention() -> str:
    """Register an attention that is causal and reads nothing else, and return its name: it gets no mask."""
    import torch
    from transformers import AttentionInterface

    def forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, is_causal=True, scale=scaling, enable_gqa=True).transpose(1, 2), None

    AttentionInterface.register("team_attention", forward)
    return "team_attention"


def trl_job(place: Place, fault: str) -> Job:
    """TRL's ``SFTTrainer`` with ``packing=True``.

    Faults:
        attention: the team's kernel reads no boundaries.
        wrapped: a strategy that cuts the stream of tokens and keeps nothing apart.
        seq_lengths: the column of lengths is lost after packing.
    """
    import datasets
    import trl

    strategy = "wrapped" if fault == "wrapped" else "bfd"
    options: dict[str, Any] = {"packing": True, "packing_strategy": strategy, "max_length": 1024}
    sizes = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    attention = team_attention() if fault == "attention" else "sdpa"
    args = trl.SFTConfig(str(place.folder), gradient_checkpointing=False, bf16=False, **sizes, **options, **SETTINGS)
    rows = [json.loads(line) for line in place.chats.read_text(encoding="utf-8").splitlines()]
    data, tokenizer = datasets.Dataset.from_list(rows), tokenizer_of(place)
    trainer = trl.SFTTrainer(model_of(place, attention), args, train_dataset=data, processing_class=tokenizer)
    if fault == "seq_lengths":
        trainer.train_dataset = trainer.train_dataset.remove_columns("seq_lengths")
    return Job({**options, **sizes, "attn_implementation": attention}, "trl", trainer.train)


def transformers_job(place: Place, fault: str) -> Job:
    """``Trainer`` with ``DataCollatorWithFlattening``.

    Faults:
        mask: a collator adds a mask of ones, as tokenizers do.
        divisor: ``compute_loss`` divides the loss of a micro-batch by their number once more.
    """
    from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

    class DividesTwice(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, False, num_items_in_batch)
            return loss / self.args.gradient_accumulation_steps

    flatten = DataCollatorWithFlattening()
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    args = TrainingArguments(str(place.folder), **sizes, **SETTINGS)
    trainer = (DividesTwice if fault == "divisor" else Trainer)(
        model_of(place),
        args,
        train_dataset=encoded(place),
        data_collator=(lambda rows: with_mask(flatten(rows))) if fault == "mask" else flatten,
        processing_class=tokenizer_of(place),
    )
    return Job(args, "transformers", trainer.train)


def encoded(place: Place) -> list[dict[str, list[int]]]:
    """Return the tokens of each chat; every token is a target."""
    words = tokenizer_of(place)
    lines = place.chats.read_text(encoding="utf-8").splitlines()
    rows = [words.apply_chat_template(json.loads(line)["messages"], return_dict=False) for line in lines]
    return [{"input_ids": row, "labels": row} for row in rows]


def with_mask(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "attention_mask": batch["input_ids"].new_ones(batch["input_ids"].shape)}


def lightning_run(place: Place, fault: str, *, is_probed: bool) -> Run:
    """Train a ``LightningModule`` with a collator of the team.

    Faults:
        cache: the model is called without ``use_cache=False``, and a model with a cache looks for no packs.
        ramp: positions are one ramp over the row.
    """
    import lightning.pytorch as pl
    import torch

    from brimful.doctor import LightningProbe

    run = Run(is_probed, tokenizer=tokenizer_of(place))
    torch.manual_seed(0)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model_of(place)

        def training_step(self, batch, index):
            options = {} if fault == "cache" else {"use_cache": False}
            return run.record(lambda: self.model(**batch, **options).loss)()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def collate(rows):
        lengths = [len(row["input_ids"]) for row in rows]
        ids = torch.tensor([[token for row in rows for token in row["input_ids"]]])
        place = torch.cat([torch.arange(length) for length in lengths])[None]
        ramp = torch.arange(ids.shape[1])[None]
        return {
            "input_ids": ids,
            "labels": ids.masked_fill(place == 0, -100),
            "position_ids": ramp if fault == "ramp" else place,
        }

    loader = torch.utils.data.DataLoader(encoded(place), batch_size=4, collate_fn=collate)  # type: ignore[arg-type]
    callback = LightningProbe()
    switches = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        default_root_dir=place.folder,
        callbacks=[callback] if is_probed else [],
        **dict.fromkeys(switches, False),
    )
    trainer.fit(Module(), loader)
    run.batch, run.report = next(iter(loader)), callback.report
    return run


_LIFT_CHECK = """
from swift.arguments.sft_args import SftArguments

def check(args):
    args.padding_free = args.packing

SftArguments._check_padding_free = check
"""


def swift_job(place: Place, fault: str) -> Job:
    """``swift sft`` with ``packing``, and a plugin that lifts its demand for flash attention, which needs a GPU.

    Faults:
        attention: the team's kernel reads no boundaries.
        ramp: a template of the team joins samples without beginning their positions again.
    """
    from swift.pipelines import sft_main
    from swift.template.base import Template

    pack = Template.packing_row

    def packing_row(template, row):
        packed = pack(template, row)
        return {**packed, "position_ids": list(range(len(packed["input_ids"])))}

    plugin = place.folder / "lift_check.py"
    plugin.write_text(_LIFT_CHECK)
    attention = team_attention() if fault == "attention" else "sdpa"
    options = {
        **SETTINGS,
        "external_plugins": plugin,
        "check_model": False,
        "model": place.model,
        "model_type": "qwen2",
        "template": "chatml",
        "dataset": place.chats,
        "packing": True,
        "max_length": 1024,
        "truncation_strategy": "delete",
        "attn_impl": attention,
        "tuner_type": "full",
        "torch_dtype": "float32",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "output_dir": place.folder,
        "split_dataset_ratio": 0,
        "dataloader_num_workers": 0,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]

    def start():
        with patch.object(Template, "packing_row", packing_row if fault == "ramp" else pack):
            sft_main(words)

    return Job(["swift", "sft", *words], "ms_swift", start)


def llama_factory_job(place: Place, fault: str) -> Job:
    """``llamafactory-cli train`` with ``neat_packing``.

    Faults:
        packing: ``packing`` alone.
    """
    from llamafactory.train.tuner import run_exp

    chats = {
        "file_name": str(place.chats),
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
        },
    }
    (place.folder / "dataset_info.json").write_text(json.dumps({"chats": chats}))
    options = {
        **SETTINGS,
        "model_name_or_path": str(place.model),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "chats",
        "dataset_dir": str(place.folder),
        "template": "qwen",
        "cutoff_len": 1024,
        "packing": True,
        "neat_packing": fault != "packing",
        "flash_attn": "sdpa",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "output_dir": str(place.folder / "output"),
    }
    return Job(options, "llama_factory", lambda: run_exp(dict(options)))


def axolotl_job(place: Place, fault: str) -> Job:
    """``axolotl train`` with ``sample_packing``.

    Faults:
        mask: a plugin of the team puts a mask of ones into the batch again.
    """
    import yaml
    from axolotl.cli.train import do_cli
    from axolotl.core.trainers.base import AxolotlTrainer

    options = {
        "base_model": str(place.model),
        "datasets": [{"path": str(place.chats), "ds_type": "json", "type": "chat_template"}],
        "chat_template": "tokenizer_default",
        "sequence_len": 1024,
        "sample_packing": True,
        "attn_implementation": "sdpa",
        "dataset_prepared_path": str(place.folder / "prepared"),
        "output_dir": str(place.folder / "output"),
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "num_epochs": 1,
        "learning_rate": 0.001,
        "lr_scheduler": "constant",
        "optimizer": "adamw_torch",
        "logging_steps": 1,
        "save_strategy": "no",
        "val_set_size": 0,
        "seed": 0,
        "dataset_num_proc": 1,
        "special_tokens": {"pad_token": "<|endoftext|>"},
        **dict.fromkeys(("bf16", "fp16", "tf32", "use_wandb"), False),
    }
    file = place.folder / "run.yaml"
    file.write_text(yaml.safe_dump(options))
    get_loader = AxolotlTrainer.get_train_dataloader

    def get_masked_loader(trainer):
        collate = trainer.data_collator
        trainer.data_collator = lambda rows: with_mask(collate(rows))
        try:
            return get_loader(trainer)
        finally:
            trainer.data_collator = collate

    def start():
        loader = get_masked_loader if fault == "mask" else get_loader
        with patch.object(AxolotlTrainer, "get_train_dataloader", loader):
            do_cli(config=str(file))

    return Job(file, "axolotl", start)


JOBS: dict[str, Callable[[Place, str], Job]] = {
    "trl": trl_job,
    "transformers": transformers_job,
    "swift": swift_job,
    "llamafactory": llama_factory_job,
    "axolotl": axolotl_job,
}
"""Jobs on ``Trainer`` of Transformers, by the module of each trainer."""
