"""Training on recordings while they are still being transcribed: a producer packs them with their sound, two ranks train.

    python examples/11_audio_as_it_arrives.py [RECORDINGS]

RECORDINGS is a directory of sounds with their transcripts (``a.flac`` and ``a.txt``); tones are made if none is given. They
land in a directory one by one. One rank is killed in its third step, and both are started again from their checkpoint, as
torchrun does. Steps, samples and losses are then those of a training that nobody killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
import transformers
from drawn_chats import make_media_chats

from brimful import PackCollator
from brimful.cli.demo.toy_model import train_tokenizer
from brimful.media.collate import MediaFeatures
from brimful.media.encode import MediaChatEncoder
from brimful.media.families import open_family
from brimful.stream import PackingProducer, StreamLoader

context = multiprocessing.get_context("fork")
RANKS, STEPS, KILLED_IN = 2, 4, 2
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'audio' %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
)
PROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "chunk_length": 30,
}


def make_recordings(folder: Path) -> None:
    """Write tones, each with the names of its notes."""
    folder.mkdir()
    chats = make_media_chats(num_chats=1, num_tones=120)
    for row in chats.tones:
        name = Path(row["audios"][0])
        (folder / name.name).write_bytes(chats.files[row["audios"][0]])
        (folder / name.with_suffix(".txt").name).write_text(
            row["messages"][1]["content"], encoding="utf-8"
        )


def record(recordings: Path, incoming: Path) -> None:
    """Let recordings arrive: each complete when it gets its name, and its transcript a moment later."""
    transcripts = sorted(recordings.glob("*.txt"))
    for number, words in enumerate(transcripts):
        while (
            number == 2 * len(transcripts) // 3
            and not (incoming.parent / "killed-step-1-0.json").exists()
        ):
            time.sleep(0.05)  # the last third is still to come when the first step is trained
        sound = next(path for path in recordings.glob(f"{words.stem}.*") if path != words)
        for path in (sound, words):
            hidden = incoming / f".{path.name}"
            shutil.copyfile(path, hidden)
            hidden.rename(incoming / path.name)
            time.sleep(0.01)
    (incoming.parent / "recorded").touch()


def produce(home: Path) -> None:
    """Pack what has arrived; end the stream when nothing more will come."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / "model")
    encoder = MediaChatEncoder(
        tokenizer, open_family("qwen2-audio", home / "model"), compare_media=False
    )
    # A training step takes one pack from each lane, and a lane is of one rank here.
    producer = PackingProducer(
        home / "incoming", encoder, home / "stream", capacity=448, lookahead=16, packs_per_shard=1, lanes=2,
        overflow="drop",
    )  # fmt: skip
    while not (home / "recorded").exists():
        if not producer.step():
            time.sleep(0.02)
    print(producer.close())


def make_model(home: Path) -> Any:
    """Make a Qwen2-Audio with random weights, the same every time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / "model")
    torch.manual_seed(0)
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    tower = {
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
    }
    config = transformers.Qwen2AudioConfig(
        audio_config={**tower, "num_mel_bins": 128, "max_source_positions": 1500},
        text_config={"model_type": "qwen2", **size, "num_key_value_heads": 1, "vocab_size": len(tokenizer),
                     "bos_token_id": None, "eos_token_id": None},
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )  # fmt: skip
    return transformers.Qwen2AudioForConditionalGeneration(config).train()


def train(home: Path, run: str, rank: int, start: int, *, is_killed: bool) -> None:
    """Train one rank from the last checkpoint of a run, and note samples and losses of each step."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{home}/{run}-{start}", rank=rank, world_size=RANKS
    )
    collate = PackCollator(media=MediaFeatures(home / "model", "qwen2-audio"))
    while not (home / "stream" / "stream.json").exists():  # the first recordings have not come yet
        time.sleep(0.05)
    loader = StreamLoader(home / "stream", dp_rank=rank, dp_world_size=RANKS, timeout=300)
    model = make_model(home)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint, step = home / f"{run}.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    for packs in loader:
        if is_killed and step == KILLED_IN and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        output = model(**collate(packs))
        output.loss.backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)
            parameter.grad /= RANKS
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        note = {"samples": [pack.sample_ids.tolist() for pack in packs], "loss": output.loss.item()}
        (home / f"{run}-step-{step}-{rank}.json").write_text(json.dumps(note))
        if rank == 0:
            state = {"model": model.state_dict(), "loader": loader.state_dict(), "step": step}
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
        distributed.barrier()
        if step == STEPS:
            break
    os._exit(
        0
    )  # gloo's threads sometimes abort a process that takes its interpreter down while they live


def launch(home: Path, run: str, *, is_killed: bool = False) -> int:
    """Run both ranks; when one dies, stop the other and start both again. Return how often they were started."""
    for start in range(3):
        ranks = [
            context.Process(
                target=train,
                args=(home, run, rank, start),
                kwargs={"is_killed": is_killed and start == 0},
            )
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        while any(process.is_alive() for process in ranks):
            time.sleep(0.05)
            if any(process.exitcode for process in ranks):
                for process in ranks:
                    process.kill()
        if not any(process.exitcode for process in ranks):
            return start + 1
    sys.exit("the ranks do not come to their end")


def notes_of(home: Path, run: str) -> list[Any]:
    """Return what every rank noted of every step."""
    names = [
        f"{run}-step-{step}-{rank}.json" for step in range(1, STEPS + 1) for rank in range(RANKS)
    ]
    return [json.loads((home / name).read_text()) for name in names]


def main() -> None:
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        recordings = Path(sys.argv[1]) if len(sys.argv) > 1 else home / "recordings"
        if len(sys.argv) == 1:
            make_recordings(recordings)
        texts = [path.read_text(encoding="utf-8") for path in sorted(recordings.glob("*.txt"))]
        marks = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
        train_tokenizer(
            texts, home / "model", vocab_size=600, special_tokens=marks, chat_template=TEMPLATE
        )
        (home / "model" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        (home / "incoming").mkdir()
        recorder = context.Process(target=record, args=(recordings, home / "incoming"))
        producer = context.Process(target=produce, args=(home,))
        for process in (recorder, producer):
            process.start()
        # Training begins with the first shards, while most recordings are still to come.
        num_starts = launch(home, "killed", is_killed=True)
        producer.join()
        launch(home, "whole")
        killed, whole = notes_of(home, "killed"), notes_of(home, "whole")
        samples = [sample for note in killed for pack in note["samples"] for sample in pack]
        print("loss", " ".join(f"{note['loss']:.4f}" for note in killed[::RANKS]))
        is_same = killed == whole and len(set(samples)) == len(samples)
        print(
            f"started {num_starts} times, {STEPS} steps, {len(samples)} recordings, each once:",
            "the samples and losses of a training without a kill"
            if is_same
            else "other samples or losses",
        )
        sys.exit(not is_same)


if __name__ == "__main__":
    main()
