"""Reads a model's shape from config.json, without `transformers`, which takes longer to import than a small model takes to load.

Fields have the names and defaults of `transformers`. Sizes have no default: a config that omits one is refused.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

Config = SimpleNamespace

_KINDS: dict[str, tuple[type, ...]] = {
    "a whole number": (int,),
    "a number": (int, float),
    "true or false": (bool,),
    "a name": (str,),
}
_GPT2 = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
_LLAMA = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
_OTHER_KINDS = {  # all other fields are whole numbers
    "layer_norm_epsilon": "a number",
    "rms_norm_eps": "a number",
    "scale_attn_weights": "true or false",
    "scale_attn_by_inverse_layer_idx": "true or false",
    "tie_word_embeddings": "true or false",
    "use_sliding_window": "true or false",
    "activation_function": "a name",
    "hidden_act": "a name",
}
_OF_LLAMA: dict[str, Any] = dict(
    num_key_value_heads=None, head_dim=None, hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=False
)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": dict(
        n_inner=None,
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        tie_word_embeddings=True,
        bos_token_id=50256,
    ),
    "llama": _OF_LLAMA | dict(sliding_window=None, bos_token_id=1),
    "mistral": _OF_LLAMA | dict(sliding_window=4096, bos_token_id=1),
    "qwen2": _OF_LLAMA | dict(sliding_window=4096, use_sliding_window=False, bos_token_id=None),
}


def read_config(known: dict[str, Any]) -> Config:
    """The shape that config.json describes. A ValueError says what is wrong with the file."""
    kind = known["model_type"]
    sizes = _GPT2 if kind == "gpt2" else _LLAMA
    missing = [name for name in sizes if known.get(name) is None]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing")
    values = {name: known.get(name, default) for name, default in _DEFAULTS[kind].items()}
    values |= {name: known[name] for name in sizes}
    for name, value in values.items():
        kind_of_value = _OTHER_KINDS.get(name, "a whole number")
        if value is not None and not _is(value, kind_of_value):
            raise ValueError(f"{name!r} must be {kind_of_value}, not {str(value)!r:.40}")
    config = Config(model_type=kind, **values)
    if kind != "gpt2":
        config.rope_parameters = rope_parameters(known)
    if kind == "qwen2" and not config.use_sliding_window:
        config.sliding_window = None
    return config


def rope_parameters(known: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings: one table since `transformers` 5; before that `rope_theta`, and `rope_scaling` if scaled."""
    rope = known.get("rope_parameters") or known.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"'rope_parameters' must be a table, not {str(rope)!r:.40}")
    rope = {"rope_theta": known.get("rope_theta", 10000.0)} | rope
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    if not _is(rope["rope_theta"], "a number"):
        raise ValueError(f"'rope_theta' must be a number, not {str(rope['rope_theta'])!r:.40}")
    return rope


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "true or false"
    return isinstance(value, _KINDS[kind]) and (not isinstance(value, int) or value >= 0)
