"""From a name to a model: a hub id, a local directory, a GGUF file, `smollm2` or `toy`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from torch import Tensor

from mechrl import hub
from mechrl.errors import MechRLError
from mechrl.files.reading import check_regular, parse_json, read_bytes
from mechrl.models import gguf, gpt2, llama
from mechrl.models.base import Model
from mechrl.models.config import Config, read_config
from mechrl.models.tokenizer import PROMPT_OPENER, Tokenizer
from mechrl.names import GPT2, Bos, check_model

Parts = tuple[Config, dict[str, Tensor], Tokenizer | None]

_BUILDERS = {
    "gpt2": gpt2.from_checkpoint,
    "llama": llama.from_checkpoint,
    "mistral": llama.from_checkpoint,
    "qwen2": llama.from_checkpoint,
}
_TOY = Path(__file__).parent / "toy"
# The files that we use. Fetching only these from the hub avoids pickles and copies in other formats
_FILES = [
    "config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
]


def load_model(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
    bos: Bos = "auto",
) -> Model:
    """Loads a language model.

    name: `toy` (comes with MechRL), `smollm2` (downloaded once), a hub id such as `gpt2`, a directory in Hugging Face layout, or a
        `.gguf` file.
    device: "auto" is CUDA if there is a device.
    revision: a hub id's branch, tag or commit.
    bos: whether prompts start with a special first token; "auto" follows the model's own convention.
    """
    name, device, commit = check_model(str(name)), resolve_device(device), None
    local = _path(name)
    if revision is not None and (name in ("toy", "smollm2") or name.endswith(".gguf") or local.is_dir()):
        raise MechRLError(f"{name}: a revision can be chosen for hub ids only; leave it out")

    if name == "toy":
        config, tensors, tokenizer = _directory(_TOY) if (_TOY / "config.json").is_file() else _random_toy()
    elif name == "smollm2":
        from mechrl.models import smollm2

        config, tensors, tokenizer = _directory(smollm2.directory())
    elif name.endswith(".gguf"):
        config, tensors, tokenizer = gguf.read(local)
    else:
        folder = local if local.is_dir() else _snapshot(name, revision)
        commit = None if folder == local else _commit(folder)
        config, tensors, tokenizer = _directory(folder)

    if dtype == torch.float64:  # convert first, so that folding the norms is exact too
        tensors = {key: tensor.to(dtype) for key, tensor in tensors.items()}
    model = _build(name, config, tensors)
    return replace(model, tokenizer=tokenizer and tokenizer.opened(bos), commit=commit).to(device, dtype)


def _build(name: str, config: Config, tensors: dict[str, Tensor]) -> Model:
    try:
        return _BUILDERS[config.model_type](name, config, tensors)
    except (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as exc:
        if "memory" in str(exc):
            raise
        raise MechRLError(
            f"{name}: the config and the weights do not fit together ({_line(exc)}); fetch it again"
        ) from exc


def catalogue() -> list[dict[str, Any]]:
    """The models that have a short name, each with its bytes on this machine, 0 if it is not here. Any other hub id, directory or
    .gguf file can be loaded as well."""
    from huggingface_hub import try_to_load_from_cache

    from mechrl.models import smollm2

    def row(name: str, files: Sequence[Path], what: str) -> dict[str, Any]:
        return {
            "name": name,
            "cached": bool(files),
            "bytes": sum(f.stat().st_size for f in files),
            "what": what,
        }

    rows = [
        row("toy", [*_TOY.glob("*.*")], "a small GPT-2 that comes with MechRL and exhibits every behaviour"),
        row(
            "smollm2",
            smollm2.files(),
            "SmolLM2-135M-Instruct, rounded to 4 bits; fetched once (93 MB), then unpacked (540 MB)",
        ),
    ]
    for name, shape in GPT2.items():
        found = try_to_load_from_cache(f"openai-community/{name}", "model.safetensors")
        here = [Path(found)] if isinstance(found, str) else []
        rows.append(row(name, here, f"GPT-2 with {shape}, from the Hugging Face hub"))
    return rows


def resolve_device(device: torch.device | str) -> torch.device:
    """`auto` is CUDA if there is a device. Refuses devices that do not exist."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(device)
    except RuntimeError as exc:
        raise MechRLError(f"device {device!r} is unknown; use auto, cpu or cuda") from exc
    if device.type not in ("cpu", "cuda"):
        raise MechRLError(f"device {str(device)!r} is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise MechRLError(f"device {str(device)!r} is not available; use auto or cpu")
    return device


def _path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        path.is_dir()  # the operating system decides what may be a path
        return path
    except (RuntimeError, OSError) as exc:  # the home of an unknown user, or a name that is too long
        raise MechRLError(
            f"{name[:80]}: not a path ({_line(exc)}); give a directory, a .gguf file, a hub id, smollm2 or toy"
        ) from exc


def _snapshot(name: str, revision: str | None) -> Path:
    """The local snapshot of a hub id."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith((".", "/")):
        raise MechRLError(
            f"{name}: no such directory; give a directory, a .gguf file, a hub id, smollm2 or toy"
        )
    if Path(name).is_file():
        raise MechRLError(
            f"{name}: not a .gguf file; give a directory, a .gguf file, a hub id, smollm2 or toy"
        )

    repo = f"openai-community/{name}" if name in GPT2 else name
    return hub.fetch(repo, revision, _FILES, name, "model", "a local directory")


def _commit(snapshot: Path) -> str | None:
    """The commit that a branch or tag resolved to: the hub's cache has one folder per commit."""
    return snapshot.name if re.fullmatch(r"[0-9a-f]{40}", snapshot.name) else None


def _directory(directory: Path) -> Parts:
    config = _config(directory)
    return config, _tensors(directory), _tokenizer(directory, config)


def _config(directory: Path) -> Config:
    path = directory / "config.json"
    known = _json(path)
    model_type = known.get("model_type")
    if not isinstance(model_type, str) or model_type not in _BUILDERS:
        raise MechRLError(
            f"{path}: model_type {model_type!r} is not supported; supported: {', '.join(_BUILDERS)}"
        )
    try:
        return read_config(known)
    except ValueError as exc:
        raise MechRLError(f"{path}: {exc}; correct it or fetch it again") from exc


def _tensors(directory: Path) -> dict[str, Tensor]:
    index = directory / "model.safetensors.index.json"
    if (directory / "model.safetensors").is_file():
        shards = ["model.safetensors"]
    elif index.is_file():
        weight_map = _json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            Path(str(shard)).name == shard for shard in weight_map.values()
        ):
            raise MechRLError(f"{index}: has no map from weights to files beside it; fetch it again")
        shards = sorted(set(weight_map.values()))
    else:
        pickle = any(directory.glob("pytorch_model*.bin"))
        why = " (pytorch_model.bin is a pickle, which may run code when opened)" if pickle else ""
        raise MechRLError(
            f"{directory}: no model.safetensors{why}; save the model with save_pretrained, which writes it"
        )

    tensors: dict[str, Tensor] = {}
    for shard in shards:
        path = directory / shard
        try:
            check_regular(path)
            with safe_open(path, framework="pt") as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        except FileNotFoundError as exc:
            raise MechRLError(f"{path}: no such file, but {index.name} names it; fetch it again") from exc
        except (SafetensorError, OSError) as exc:
            raise MechRLError(
                f"{path}: truncated or not a safetensors file ({_line(exc)}); fetch it again"
            ) from exc
    return tensors


def _tokenizer(directory: Path, config: Config) -> Tokenizer | None:
    whole, vocab, merges = (directory / file for file in ("tokenizer.json", "vocab.json", "merges.txt"))
    if whole.is_file():
        try:
            text = _text(whole)
            _check_tokenizer(parse_json(text))
            backend = Backend.from_str(text)
        except Exception as exc:  # the tokenizers library raises nothing more specific
            raise MechRLError(f"{whole}: not a tokenizer ({_line(exc)}); fetch it again") from exc
        backend.no_truncation()
        backend.no_padding()
    elif vocab.is_file() and merges.is_file():
        # only tokenizer.json says how text is split into words; without it, the architecture decides
        pre = {"gpt2": "gpt-2", "qwen2": "qwen2"}.get(config.model_type)
        if pre is None:
            raise MechRLError(f"{directory}: no tokenizer.json; the tokenizer's save_pretrained writes it")
        lines = _text(merges).split("\n")
        rules = [line for line in lines if line and not line.startswith("#version")]
        special = [AddedToken(PROMPT_OPENER, special=True, normalized=False)]
        backend = gguf.byte_level_bpe(directory, pre, _json(vocab), rules, special)
    else:
        return None
    path = directory / "tokenizer_config.json"
    settings = _json(path) if path.is_file() else {}
    bos = settings.get("bos_token")
    bos = bos.get("content") if isinstance(bos, dict) else bos
    bos = config.bos_token_id if bos is None else bos
    try:
        tokenizer = Tokenizer.of(
            backend, bos, settings.get("add_bos_token"), config.model_type, "tokenizer_config.json"
        )
        opener = tokenizer.opener
        if opener is not None and not (type(opener) is int and 0 <= opener < backend.get_vocab_size()):
            raise ValueError(f"bos_token is {str(opener)[:40]!r}")
        return tokenizer
    except ValueError as exc:  # also half a character
        raise MechRLError(
            f"{directory}: no token opens a prompt ({_line(exc)}); correct bos_token or fetch it again"
        ) from exc


def _check_tokenizer(known: Any) -> None:
    """Refuses a tokenizer.json that would crash the library."""
    model = known.get("model") if isinstance(known, dict) else None
    if isinstance(model, dict) and model.get("merges"):
        merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        prefix = model.get("continuing_subword_prefix") or ""
        if not prefix:
            gguf.check_merges(model["vocab"], [(left, right) for left, right in merges])


def _json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(_text(path))
    except ValueError as exc:
        raise MechRLError(f"{path}: not valid JSON ({exc}); fetch it again") from exc
    if not isinstance(value, dict):
        raise MechRLError(f"{path}: not a JSON object; fetch it again")
    return value


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode().replace("\r\n", "\n")
    except FileNotFoundError as exc:
        raise MechRLError(
            f"{path}: no such file; a model's directory needs config.json and model.safetensors"
        ) from exc
    except (OSError, ValueError) as exc:
        raise MechRLError(f"{path}: cannot be read ({_line(exc)})") from exc


def _line(exc: Exception) -> str:
    """A library's message on one line."""
    return " ".join(str(exc).split()) or type(exc).__name__


def _random_toy() -> Parts:
    """A tiny GPT-2 with seeded random weights, for a source tree without the trained toy model."""
    layers, heads, d, vocab, context = 2, 4, 32, 100, 64
    sizes = dict(n_layer=layers, n_head=heads, n_embd=d, vocab_size=vocab, n_positions=context)
    config = read_config(sizes | dict(model_type="gpt2", bos_token_id=0))
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).div(shape[0] ** 0.5)

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": torch.ones(d), f"{name}.bias": torch.zeros(d)}

    tensors = {"wte.weight": random(vocab, d), "wpe.weight": random(context, d), **norm("ln_f")}
    for layer in range(layers):
        p = f"h.{layer}."
        tensors |= norm(p + "ln_1") | norm(p + "ln_2")
        maps = {
            "attn.c_attn": (d, 3 * d),
            "attn.c_proj": (d, d),
            "mlp.c_fc": (d, 4 * d),
            "mlp.c_proj": (4 * d, d),
        }
        for part, (n_in, n_out) in maps.items():
            tensors |= {f"{p}{part}.weight": random(n_in, n_out), f"{p}{part}.bias": torch.zeros(n_out)}
    return config, tensors, None
