"""All readers: how to make a valid file, and how to read it. To add a reader, add a row to `READERS`.

`make` writes valid files into an empty folder. `read` gets that folder with one of them damaged, and may raise a MechRLError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers

from mechrl import attribution
from mechrl.agents.paper.checkpoint import load_policy, save_policy, trained_with
from mechrl.agents.paper.deploy import Rollouts, Watch
from mechrl.agents.paper.env import EnvConfig, Task, make_task
from mechrl.agents.paper.policy import Policy
from mechrl.agents.paper.ppo import PPOConfig, Trainer
from mechrl.agents.paper.tasks import TaskSettings
from mechrl.agents.paper.train import Run, _check_continues, _load, describe
from mechrl.behaviours import PARTS, load_behaviour
from mechrl.circuit import Circuit
from mechrl.cli.view import read_notes
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.experiments.cells import Cell, Workspace
from mechrl.experiments.compare import rows
from mechrl.files.sealed import sealed
from mechrl.models import load_model
from mechrl.models.gguf import byte_level_bpe
from mechrl.search.problem import Interrupted, State
from mechrl.search.session import SearchSettings, check_continues
from tests.behaviours.tokenizers import gpt2, word_level
from tests.fuzz import planner
from tests.tiny import TinyPairs, tiny
from tests.viewer.circuits import SMALL, random_circuit


@dataclass(frozen=True)
class Reader:
    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]
    damage: tuple[str, ...] = ()  # the files to damage, among those that `make` writes; by default all


ROWS = [
    {
        "clean": f"I live in {a}. My city is",
        "corrupt": f"I live in {b}. My city is",
        "answer": f" {a}",
        "foil": [f" {b}", " the"],
    }
    for a, b in (("Paris", "London"), ("Berlin", "Madrid"), ("Rome", "Moscow"), ("Tokyo", "Cairo"))
]


# ---- circuits and behaviours ----------------------------------------------------------------------------------------


def make_circuit(folder: Path) -> None:
    random_circuit(SMALL, 20, removed=9, settings={"k": 3000, "prefilter": "union", "pairs_seed": 3}).save(
        folder / "circuit.json"
    )


def read_circuit(folder: Path) -> None:
    circuit = Circuit.load(folder / "circuit.json")
    circuit.importance()
    json.dumps(circuit.to_json())
    assert repr(circuit) and circuit.pairs_seed >= 0


def make_compressed(folder: Path) -> None:
    random_circuit(SMALL, 20).save(folder / "circuit.json.gz")


def make_notes(folder: Path) -> None:
    notes = {"pins": ["a0.1"], "names": {"a0.1": "the first"}, "groups": {"m1": "mine"}}
    (folder / "circuit.notes.json").write_text(json.dumps(notes))


def notes_of(folder: Path) -> None:
    json.dumps(read_notes(folder / "circuit.json", random_circuit(SMALL, 20)))


def make_jsonl(folder: Path) -> None:
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def make_csv(folder: Path) -> None:
    rows = [f'{r["clean"]},"{r["corrupt"]}",{r["answer"]},{"|".join(r["foil"])}' for r in ROWS]
    (folder / "mine.csv").write_text("\n".join(["clean,corrupt,answer,foil", *rows]))


def read_behaviour(folder: Path) -> None:
    behaviour = load_behaviour(next(folder.glob("mine.*")))
    for part in PARTS:
        behaviour.pairs(gpt2(), part=part)


# ---- policies and training ------------------------------------------------------------------------------------------


@cache
def engine() -> Engine:
    rng = np.random.default_rng(0)
    model = tiny("gpt2")
    clean, corrupt = (rng.integers(0, len(model.embedding), (4, 6)).tolist() for _ in range(2))
    return Engine(model, TinyPairs(clean, corrupt))


ENV = EnvConfig(max_steps=3)


@cache
def task() -> Task:
    scores = np.random.default_rng(0).normal(size=engine().graph.n_edges)
    return make_task("tiny", engine(), np.argsort(-abs(scores))[:20].copy(), scores, ENV)


def new_trainer() -> Trainer:
    torch.manual_seed(0)
    return Trainer([task()], PPOConfig(2, 8, 2, minibatches=2), ENV, Policy(4))


@cache
def trainer() -> Trainer:
    """The trainer into which damaged checkpoints are loaded."""
    return new_trainer()


@cache
def about() -> dict:
    return describe(engine().model, trainer(), TaskSettings())


def make_policy(folder: Path) -> None:
    save_policy(new_trainer().policy, folder)
    (folder / "run.json").write_text(json.dumps(about()))


def read_policy(folder: Path) -> None:
    load_policy(folder)
    trained_with(folder)


def make_run(folder: Path) -> None:
    for _ in Run(folder, new_trainer(), about()):
        pass


def read_checkpoint(folder: Path) -> None:
    _load(trainer(), folder / "checkpoint.safetensors")


def read_run(folder: Path) -> None:
    """Reads everything that `--resume` reads."""
    _check_continues(folder, about())
    Run(folder, trainer(), about(), resume=True)


def rollouts() -> Rollouts:
    return Rollouts(trainer().policy, task(), ENV, 2, 0)


def make_rollouts(folder: Path) -> None:
    with suppress(Interrupted):
        rollouts().run(Watch(path=folder / "rollouts.safetensors", stopping=lambda: True))


def read_rollouts(folder: Path) -> None:
    if not rollouts().restore(folder / "rollouts.safetensors"):
        raise MechRLError("done again")


# ---- searches, caches, cells ----------------------------------------------------------------------------------------

SETTINGS = SearchSettings("acdc", pairs=4)


def make_state(folder: Path) -> None:
    model = engine().model
    known = {
        "model": model.name,
        "checksum": model.checksum,
        "behaviour": "ioi",
        "settings": SETTINGS.to_json(),
    }
    known |= {"aim": 0.9, "k": 20, "attempt": 0, "found": None, "passes": 1.5, "seconds": 2.0, "calls": 3}
    state = State(np.ones(20, bool), [3, 1], 0.5, {"at": np.arange(3), "progress": 0.5}, note="on its way")
    (folder / "state.safetensors").write_bytes(state.to_bytes(**known))


class Ioi:
    name = "ioi"


def read_state(folder: Path) -> None:
    _, known = State.read(folder / "state.safetensors")
    check_continues(engine().model, Ioi(), SETTINGS, known)  # type: ignore[arg-type]  # it asks for the name alone


def make_scores(folder: Path) -> None:
    (folder / "scores.safetensors").write_bytes(
        sealed({"scores": np.ones(7)}, {"what": "this", "passes": "3.0"})
    )


def read_scores(folder: Path) -> None:
    if attribution._read(folder / "scores.safetensors", "this", 7) is None:
        raise MechRLError("computed again")


CELL = Cell("circuit", {"behaviour": "ioi", "method": "greedy", "target": "test", "seed": 0})


def place(folder: Path) -> Workspace:
    return Workspace(folder, lambda hands, cell: {}, lambda place: None)


def make_cell(folder: Path) -> None:
    keys = ("edges", "edges_pruned", "f", "f_test", "passes", "seconds")
    place(folder).write(CELL, "done", result={key: 1.0 for key in keys} | {"reached": True, "note": "fine"})


def read_cell(folder: Path) -> None:
    if rows([CELL], place(folder))[0].done == 0:
        raise MechRLError("done again")


# ---- models ---------------------------------------------------------------------------------------------------------


def make_hub(folder: Path) -> None:
    tokenizer = word_level().backend
    shape = dict(n_embd=8, n_head=2, n_layer=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**shape, vocab_size=tokenizer.get_vocab_size())
    )
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))


def read_hub(folder: Path) -> None:
    model = load_model(folder)
    if model.tokenizer is not None:
        model.tokenizer.prompt("When John and Mary went")


def make_bpe(folder: Path) -> None:
    """With a tokenizer as language models have it."""
    make_hub(folder)
    added = [tokenizers.AddedToken("<bos>", special=True)]
    vocab = {
        token: i for i, token in enumerate(["W", "h", "e", "n", "Wh", "en", "Whe", "When", "Ġ", "J", "o"])
    }
    backend = byte_level_bpe("here", "gpt-2", vocab, ["W h", "e n", "Wh en"], added)
    backend.save(str(folder / "tokenizer.json"))


def make_llama(folder: Path) -> None:
    """With the tokenizer in two files, as GPT-2's hub page has it."""
    config = transformers.Qwen2Config(
        vocab_size=300,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")


def make_gguf(folder: Path) -> None:
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(16)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", "é"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (4, 8),
        "output_norm.weight": (8,),
        "blk.0.attn_norm.weight": (8,),
        "blk.0.ffn_norm.weight": (8,),
    }
    shapes |= {"blk.0.attn_q.weight": (8, 8), "blk.0.attn_k.weight": (4, 8), "blk.0.attn_v.weight": (4, 8)}
    shapes |= {
        "blk.0.attn_output.weight": (8, 8),
        "blk.0.ffn_gate.weight": (16, 8),
        "blk.0.ffn_up.weight": (16, 8),
    }
    for name, shape in (shapes | {"blk.0.ffn_down.weight": (8, 16)}).items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(folder: Path) -> None:
    model = load_model(folder / "model.gguf")
    if model.tokenizer is not None:
        model.tokenizer.prompt("ab a")


READERS = (
    Reader("circuit", make_circuit, read_circuit),
    Reader("circuit, compressed", make_compressed, lambda folder: Circuit.load(folder / "circuit.json.gz")),
    Reader("notes", make_notes, notes_of),
    Reader("behaviour, JSONL", make_jsonl, read_behaviour),
    Reader("behaviour, CSV", make_csv, read_behaviour),
    Reader("policy", make_policy, read_policy),
    Reader("checkpoint", make_run, read_checkpoint, ("checkpoint.safetensors",)),
    Reader("training run", make_run, read_run, ("run.json", "metrics.jsonl")),
    Reader("rollouts", make_rollouts, read_rollouts),
    Reader("search state", make_state, read_state),
    Reader("score cache", make_scores, read_scores),
    Reader("cell", make_cell, read_cell),
    Reader(
        "hub directory", make_hub, read_hub, ("config.json", "model.safetensors", "tokenizer_config.json")
    ),
    Reader("hub directory, two files", make_llama, read_hub, ("config.json", "vocab.json", "merges.txt")),
    Reader("tokenizer, words", make_hub, read_hub, ("tokenizer.json",)),
    Reader("tokenizer, byte-level BPE", make_bpe, read_hub, ("tokenizer.json",)),
    Reader("GGUF", make_gguf, read_gguf),
    Reader("planner", planner.make_network, planner.read_network),
    Reader("planner's records", planner.make_records, planner.read_records),
    Reader("planner's state", planner.make_left, planner.read_left),
)
