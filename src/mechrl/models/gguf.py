"""Reads a GGUF file: the config, the weights as float32 under Hugging Face's names, the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from mechrl.errors import MechRLError
from mechrl.files.reading import check_regular
from mechrl.models.config import Config, read_config
from mechrl.models.tokenizer import Tokenizer

# GGUF's names of a block's parts -> Hugging Face's; each has a weight and may have a bias
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def read(path: str | Path) -> tuple[Config, dict[str, Tensor], Tokenizer | None]:
    """Config, tensors and tokenizer (None if the file has none) of a llama or qwen2 GGUF."""
    from gguf import GGUFReader

    check_regular(path)
    try:
        reader = GGUFReader(path)
    except FileNotFoundError as exc:
        raise MechRLError(f"{path}: no such file") from exc
    except OSError as exc:
        raise MechRLError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    except (ValueError, IndexError, KeyError, OverflowError) as exc:  # damaged bytes
        raise MechRLError(f"{path}: not a GGUF file, or a truncated one; fetch it again") from exc
    if reader.byte_order != "I":
        raise MechRLError(f"{path}: written for the other byte order; convert it with gguf_convert_endian.py")

    meta = {key: _contents(path, field) for key, field in reader.fields.items()}
    shapes = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    config = _config(path, meta, shapes)
    tensors = {}
    for tensor in reader.tensors:
        name = _hf_name(path, tensor.name)
        array = _dequantise(path, tensor)
        if config.model_type == "llama":  # llama.cpp leaves qwen2's rows in order
            if name.endswith(("q_proj.weight", "q_proj.bias")):
                array = _unpermute(array, config.num_attention_heads)
            elif name.endswith(("k_proj.weight", "k_proj.bias")):
                array = _unpermute(array, config.num_key_value_heads)
        # a copy, because the file is memory-mapped
        tensors[name] = torch.from_numpy(np.array(array, dtype=np.float32))
    return config, tensors, _tokenizer(path, meta)


def _contents(path: str | Path, field: Any) -> Any:
    try:
        return field.contents()
    except (ValueError, IndexError, TypeError, KeyError) as exc:  # not UTF-8, or not a field
        raise MechRLError(
            f"{path}: GGUF field {field.name!r:.60} is damaged ({exc}); fetch it again"
        ) from exc


def _config(path: str | Path, meta: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Config:
    architecture = meta.get("general.architecture")
    if architecture not in ("llama", "qwen2"):
        raise MechRLError(
            f"{path}: GGUF architecture {architecture!r} is not supported; supported: llama, qwen2"
        )

    def get(key: str, kind: type, default: Any = None) -> Any:
        value = meta.get(f"{architecture}.{key}", default)
        if not isinstance(value, kind):
            what = "is missing" if value is None else f"is {value!r:.40}, which is not supported"
            raise MechRLError(f"{path}: GGUF field '{architecture}.{key}' {what}")
        return value

    heads, width = get("attention.head_count", int), get("embedding_length", int)
    head_dim = get("attention.key_length", int, width // max(heads, 1))
    unsupported = {
        "a mixture of experts": get("expert_count", int, 0) > 0,
        "scaled rotary positions": get("rope.scaling.type", str, "none") != "none"
        or "rope_freqs.weight" in shapes,
        "partial rotary positions": get("rope.dimension_count", int, head_dim) != head_dim,
        "values of another width than keys": get("attention.value_length", int, head_dim) != head_dim,
    }
    for what, present in unsupported.items():
        if present:
            raise MechRLError(f"{path}: {what} cannot be read from GGUF; use the model's safetensors instead")
    if "token_embd.weight" not in shapes:
        raise MechRLError(f"{path}: holds no token embedding; it is not a whole language model")
    if width % max(heads, 1):
        raise MechRLError(f"{path}: its width {width} is not a multiple of its {heads} heads; fetch it again")
    known = dict(
        model_type=architecture,
        vocab_size=shapes["token_embd.weight"][0],
        hidden_size=width,
        intermediate_size=get("feed_forward_length", int),
        num_hidden_layers=get("block_count", int),
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", int, heads),
        head_dim=head_dim,
        max_position_embeddings=get("context_length", int),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon", float),
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base", float, 10000.0)},
        tie_word_embeddings="output.weight" not in shapes,
        bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
    )
    try:
        return read_config(known)
    except ValueError as exc:
        raise MechRLError(f"{path}: in its metadata {exc}; fetch it again") from exc


def _hf_name(path: str | Path, name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    match name.split("."):
        case ["blk", layer, part, ("weight" | "bias") as kind] if part in _PARTS:
            return f"model.layers.{layer}.{_PARTS[part]}.{kind}"
    raise MechRLError(f"{path}: holds the tensor {name!r}, which a plain llama or qwen2 model does not have")


def _dequantise(path: str | Path, tensor: Any) -> np.ndarray:
    from gguf.quants import dequantize

    try:
        return dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as exc:
        kind = tensor.tensor_type.name
        raise MechRLError(f"{path}: quantisation {kind} is not supported; use a Q8_0 or F16 file") from exc


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's reordering of each head's rows of q and k: it rotates neighbouring pairs, we rotate halves."""
    if array.shape[0] % (2 * heads):
        return array  # wrong shape; building the model gives the better error
    return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


# ---- the tokenizer --------------------------------------------------------------------------------------------------

# how Qwen2 and Llama 3 split text into words; they differ in how many digits stay together
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level_bpe(
    where: str | Path, pre: str, vocab: dict[str, int], merges: list[str], added: list[AddedToken]
) -> Backend:
    """A byte-level BPE tokenizer. `pre` is GGUF's name for how text is first split into words."""

    def split(digits: str) -> pre_tokenizers.PreTokenizer:
        words = pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated")
        return pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    splitters = {
        "gpt-2": gpt2,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "qwen2": split(""),
        "llama-bpe": split("{1,3}"),
    }
    if pre not in splitters:
        raise MechRLError(
            f"{where}: pre-tokenizer {pre!r} is not supported; supported: {', '.join(splitters)}"
        )
    try:
        pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
        check_merges(vocab, pairs)
        # Llama 3 takes a word that is in the vocabulary whole, even if no merges produce it
        bpe = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre == "llama-bpe")
    except Exception as exc:  # the library raises nothing more specific
        raise MechRLError(
            f"{where}: the tokenizer's tokens and merges do not fit together; fetch it again"
        ) from exc
    backend = Backend(bpe)
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitters[pre]
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(added)
    return backend


def check_merges(vocab: Any, pairs: list[tuple[str, str]]) -> None:
    """Refuses merges of tokens, or into tokens, that the vocabulary lacks: they would crash the library."""
    if not all(left in vocab and right in vocab and left + right in vocab for left, right in pairs):
        raise ValueError("a merge of tokens that are not in the vocabulary")
    if not all(isinstance(token, str) and type(i) is int and 0 <= i < 2**32 for token, i in vocab.items()):
        raise ValueError("an id that is not one")


def _tokenizer(path: str | Path, meta: dict[str, Any]) -> Tokenizer | None:
    from gguf import TokenType

    kind = meta.get("tokenizer.ggml.model", "none")
    if kind == "none":
        return None
    if kind != "gpt2":
        raise MechRLError(f"{path}: tokenizer {kind!r} is not supported; supported: gpt2 (byte-level BPE)")
    tokens, merges = meta.get("tokenizer.ggml.tokens"), meta.get("tokenizer.ggml.merges")
    if not tokens or not merges:
        raise MechRLError(f"{path}: the tokenizer's tokens or merges are missing from the GGUF metadata")
    special = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
    types = meta.get("tokenizer.ggml.token_type", [])
    added = [
        AddedToken(token, special=special[kind], normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind in special
    ]
    pre = meta.get("tokenizer.ggml.pre", "")
    backend = byte_level_bpe(path, pre, {token: i for i, token in enumerate(tokens)}, merges, added)
    add = meta.get("tokenizer.ggml.add_bos_token")
    return Tokenizer.of(backend, meta.get("tokenizer.ggml.bos_token_id"), add, pre, "the GGUF")
