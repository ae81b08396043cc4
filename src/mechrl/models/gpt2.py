"""GPT-2: LayerNorm, learned positions, biases everywhere, one MLP with GELU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mechrl.errors import MechRLError
from mechrl.models.base import MLP, Attention, Model, Spec, Weights, by_head, check_activation, checksum, fold


def from_checkpoint(name: str, config: Any, tensors: Mapping[str, Tensor]) -> Model:
    """Builds the model from its config (ours or a `transformers` one) and the tensors of its checkpoint.

    Saved models prefix their keys with `transformer.`. The hub's original file does not; it has `attn.bias` buffers (the causal mask)
    Saved models prefix their keys with `transformer.`. The hub's original file does not, and also has `attn.bias` buffers (the causal
    mask), which are ignored.
    """
    tensors = {
        key.removeprefix("transformer."): value
        for key, value in tensors.items()
        if not key.endswith((".attn.bias", ".attn.masked_bias"))
    }
    w = Weights(tensors, name)
    d, H, n_ctx, V = config.n_embd, config.n_head, config.n_positions, config.vocab_size
    if d % H:
        raise MechRLError(f"{name}: the config's n_embd {d} is not a multiple of its n_head {H}")
    e, m = d // H, config.n_inner or 4 * config.n_embd
    spec = Spec("gpt2", config.n_layer, H, H, d, e, m, V, n_ctx, "layer", config.layer_norm_epsilon)

    attention, mlps = [], []
    for layer in range(spec.n_layers):
        p = f"h.{layer}."
        gain, shift = w.get(p + "ln_1.weight", d), w.get(p + "ln_1.bias", d)
        # c_attn maps d to [q | k | v]; GPT-2 stores its linear maps as [in, out]
        W, b = w.get(p + "attn.c_attn.weight", d, 3 * d), w.get(p + "attn.c_attn.bias", 3 * d)
        (W_q, b_q), (W_k, b_k), (W_v, b_v) = (
            by_head(*fold(Wx, bx, gain, shift), H) for Wx, bx in zip(W.split(d, 1), b.split(d), strict=True)
        )
        scale = e**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        W_o = w.get(p + "attn.c_proj.weight", d, d).reshape(H, e, d).contiguous()
        attention.append(
            Attention(W_q, W_k, W_v, b_q, b_k, b_v, W_o, w.get(p + "attn.c_proj.bias", d), scale)
        )

        W_in, b_in = fold(
            w.get(p + "mlp.c_fc.weight", d, m),
            w.get(p + "mlp.c_fc.bias", m),
            w.get(p + "ln_2.weight", d),
            w.get(p + "ln_2.bias", d),
        )
        W_out, b_out = w.get(p + "mlp.c_proj.weight", m, d), w.get(p + "mlp.c_proj.bias", d)
        mlps.append(MLP(W_in, b_in, None, None, W_out, b_out, check_activation(config.activation_function)))

    embedding, tied = w.get("wte.weight", V, d), config.tie_word_embeddings
    return Model(
        name=name,
        spec=spec,
        embedding=embedding,
        position=w.get("wpe.weight", n_ctx, d),
        inverse_frequency=None,
        rotary_scale=1.0,
        attention=tuple(attention),
        mlp=tuple(mlps),
        final_gain=w.get("ln_f.weight", d),
        final_shift=w.get("ln_f.bias", d),
        unembedding=embedding if tied else w.get("lm_head.weight", V, d),
        checksum=checksum({k: v for k, v in tensors.items() if k != "lm_head.weight" or not tied}),
    )
