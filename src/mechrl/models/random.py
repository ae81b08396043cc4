"""Models of any shape with random weights, to measure speed and memory without a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from mechrl.models.base import MLP, Attention, Model, Spec

SHAPES = {
    "gpt2": Spec("gpt2", 12, 12, 12, 768, 64, 3072, 50257, 1024, "layer", 1e-5),
    "smollm2-135m": Spec("llama", 30, 9, 3, 576, 64, 1536, 49152, 8192, "rms", 1e-5),
    "qwen2.5-0.5b": Spec("llama", 24, 14, 2, 896, 64, 4864, 151936, 32768, "rms", 1e-6),
    "llama-3.2-1b": Spec("llama", 16, 32, 8, 2048, 64, 8192, 128256, 131072, "rms", 1e-5),
    "llama-3.2-3b": Spec("llama", 28, 24, 8, 3072, 128, 8192, 128256, 131072, "rms", 1e-5),
}


def random_model(spec: Spec, name: str = "random", seed: int = 0, device: str = "cpu") -> Model:
    """Weights are scaled so that components write at the scale of the stream. The embedding is tied."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).mul_(shape[-2] ** -0.5)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, device=device)

    H, G, d, e, m = spec.n_heads, spec.n_kv_heads, spec.d_model, spec.d_head, spec.d_mlp
    gated = spec.architecture == "llama"
    layers = range(spec.n_layers)
    attention = tuple(
        Attention(normal(H, d, e), normal(G, d, e), normal(G, d, e), zeros(H, e), zeros(G, e), zeros(G, e),
                  normal(H, e, d), zeros(d), e**-0.5)
        for _ in layers
    )  # fmt: skip
    mlp = tuple(
        MLP(normal(d, m), zeros(m), normal(d, m) if gated else None, zeros(m) if gated else None,
            normal(m, d), zeros(d), "silu" if gated else "gelu_new")
        for _ in layers
    )  # fmt: skip
    embedding = torch.randn((spec.vocab_size, d), generator=generator, device=device)
    frequency = 10000.0 ** (-torch.arange(0, e, 2, dtype=torch.float32, device=device) / e)
    return Model(
        name=name,
        spec=spec,
        embedding=embedding,
        position=None if gated else normal(spec.n_ctx, d),
        inverse_frequency=frequency if gated else None,
        rotary_scale=1.0,
        attention=attention,
        mlp=mlp,
        final_gain=torch.ones(d, device=device) / d**0.5,
        final_shift=zeros(d),
        unembedding=embedding,
    )
