"""Llama and related models (SmolLM2, Mistral, Qwen2): RMSNorm, rotary positions, grouped-query attention, gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mechrl.errors import MechRLError
from mechrl.models.base import MLP, Attention, Model, Spec, Weights, by_head, check_activation, checksum, fold


def from_checkpoint(name: str, config: Any, tensors: Mapping[str, Tensor]) -> Model:
    """Builds the model from its config (ours or a `transformers` one) and its checkpoint's tensors."""
    tensors = {
        k.removeprefix("model."): v for k, v in tensors.items() if not k.endswith("rotary_emb.inv_freq")
    }
    w = Weights(tensors, name)
    d, H, G = (
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads or config.num_attention_heads,
    )
    e = getattr(config, "head_dim", None) or d // H
    m, V = config.intermediate_size, config.vocab_size
    # within the window, sliding-window attention is plain attention
    longest = config.max_position_embeddings
    n_ctx = min(longest, getattr(config, "sliding_window", None) or longest)
    spec = Spec("llama", config.num_hidden_layers, H, G, d, e, m, V, n_ctx, "rms", config.rms_norm_eps)
    if "layers.0.self_attn.q_norm.weight" in w:
        raise MechRLError(f"{name}: normalised queries and keys (Qwen3-like) are not supported")

    attention, mlps = [], []
    for layer in range(spec.n_layers):
        p = f"layers.{layer}."
        gain = w.get(p + "input_layernorm.weight", d)

        def reader(which: str, n: int, p: str = p, gain: Tensor = gain) -> tuple[Tensor, Tensor]:
            W = w.get(f"{p}self_attn.{which}_proj.weight", n * e, d).T  # stored as [out, in]
            return by_head(*fold(W, w.optional(f"{p}self_attn.{which}_proj.bias", n * e), gain, None), n)

        (W_q, b_q), (W_k, b_k), (W_v, b_v) = reader("q", H), reader("k", G), reader("v", G)
        W_o = w.get(p + "self_attn.o_proj.weight", d, H * e).T.reshape(H, e, d).contiguous()
        b_o = w.optional(p + "self_attn.o_proj.bias", d)
        attention.append(
            Attention(W_q, W_k, W_v, b_q, b_k, b_v, W_o, torch.zeros(d) if b_o is None else b_o, e**-0.5)
        )

        mlps.append(_mlp(w, p, spec, check_activation(config.hidden_act)))

    inverse_frequency, rotary_scale = rotary(config)
    embedding = w.get("embed_tokens.weight", V, d)
    tied = config.tie_word_embeddings
    return Model(
        name=name,
        spec=spec,
        embedding=embedding,
        position=None,
        inverse_frequency=inverse_frequency,
        rotary_scale=rotary_scale,
        attention=tuple(attention),
        mlp=tuple(mlps),
        final_gain=w.get("norm.weight", d),
        final_shift=torch.zeros(d),
        unembedding=embedding if tied else w.get("lm_head.weight", V, d),
        checksum=checksum({k: v for k, v in tensors.items() if k != "lm_head.weight" or not tied}),
    )


def _mlp(w: Weights, prefix: str, spec: Spec, activation: str) -> MLP:
    d, m = spec.d_model, spec.d_mlp
    gain = w.get(prefix + "post_attention_layernorm.weight", d)
    W, b = w.get(prefix + "mlp.up_proj.weight", m, d), w.optional(prefix + "mlp.up_proj.bias", m)
    W_in, b_in = fold(W.T, b, gain, None)
    W, b = w.get(prefix + "mlp.gate_proj.weight", m, d), w.optional(prefix + "mlp.gate_proj.bias", m)
    W_gate, b_gate = fold(W.T, b, gain, None)
    b_out = w.optional(prefix + "mlp.down_proj.bias", d)
    W_out = w.get(prefix + "mlp.down_proj.weight", d, m).T.contiguous()
    return MLP(W_in, b_in, W_gate, b_gate, W_out, torch.zeros(d) if b_out is None else b_out, activation)


def rotary(config: Any) -> tuple[Tensor, float]:
    """Inverse frequencies θ^(−2i/e) [e / 2], and the factor on cos and sin. `transformers` computes the scaled ones."""
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        e = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 1.0 / (rope["rope_theta"] ** (torch.arange(0, e, 2, dtype=torch.float32) / e)), 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    if rope["rope_type"] not in ROPE_INIT_FUNCTIONS:
        raise MechRLError(f"rotary positions of type {rope['rope_type']!r} are not supported")
    names = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
    try:
        known: dict[str, Any] = {name: getattr(config, name, None) for name in names}
        whole = LlamaConfig(**known, rope_parameters=dict(rope))
        embedding = LlamaRotaryEmbedding(whole)
    except Exception as exc:  # a bad value may raise anything
        raise ValueError(f"rotary positions: {exc}") from exc
    if embedding.rope_type == "dynamic":
        raise MechRLError("dynamic rotary scaling is not supported: it depends on the prompt's length")
    return embedding.inv_freq.to(torch.float32), float(embedding.attention_scaling)
