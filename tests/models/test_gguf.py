"""A GGUF written from a random model as llama.cpp's converter does loads to an equal model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, TokenType
from tokenizers import Tokenizer as Backend

from mechrl.errors import MechRLError
from mechrl.models import Model, load_model
from mechrl.models.gguf import byte_level_bpe
from tests.models.plain_forward import plain_forward
from tests.models.test_loading import BYTES, IDS, SIZES, assert_same_logits, error, random_model

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
}
MERGES = ["Ġ M", "a r", "ĠM ar", "ĠMar y", "1 7", "17 3", "4 2", "i s"]
TOKENS = ["<|endoftext|>", "<|im_start|>", *BYTES, *(merge.replace(" ", "") for merge in MERGES), "<mine>"]
TYPES = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(TOKENS) - 3) + [TokenType.USER_DEFINED]


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half and row i of its second half become neighbours, as in llama.cpp's converter."""
    size = array.shape[0] // heads
    order = [
        h * size + half * size // 2 + i for h in range(heads) for i in range(size // 2) for half in (0, 1)
    ]
    return array[order]


def write(
    path: Path,
    model: transformers.PreTrainedModel,
    pre: str | None = None,
    tokens=TOKENS,
    quantise=None,
    **extra,
) -> Path:
    """Writes a model as GGUF, with a tokenizer if `pre` is given (its pre-tokenizer); `extra`: more fields."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if pre is not None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(TYPES)
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(1)
    for key, value in extra.items():
        key = key.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            writer.add_uint32(key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if config.model_type == "llama" and "q_proj" in name:
            array = permute(array, config.num_attention_heads)
        if config.model_type == "llama" and "k_proj" in name:
            array = permute(array, config.num_key_value_heads)
        for hf, ours in [*WHOLE.items(), *PARTS.items()]:
            name = name.replace(hf, ours)
        if quantise is not None and array.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(array, quantise), raw_dtype=quantise)
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "llama grouped, tied": transformers.LlamaConfig(
        **SIZES | {"num_key_value_heads": 2}, tie_word_embeddings=True
    ),
    "llama biases": transformers.LlamaConfig(**SIZES, attention_bias=True),
    "llama wide heads": transformers.LlamaConfig(**SIZES, head_dim=16),
    "llama theta": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e5}
    ),
    "qwen2": transformers.Qwen2Config(**SIZES | {"num_key_value_heads": 2}),
}


@pytest.fixture
def llama() -> transformers.PreTrainedModel:
    return random_model(CONFIGS["llama"])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_equals_the_model_it_was_written_from(config, tmp_path: Path) -> None:
    reference = random_model(config)
    reference.save_pretrained(tmp_path)
    model = load_model(write(tmp_path / "model.gguf", reference))
    assert_same_logits(model, reference)
    assert model.checksum == load_model(tmp_path).checksum  # the same weights, bit by bit
    assert model.tokenizer is None and model.name.endswith("model.gguf")


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
@torch.no_grad()
def test_quantised(kind: str, tmp_path: Path) -> None:
    # 32 per block, so every width is a multiple of that
    reference = random_model(transformers.LlamaConfig(**SIZES | {"intermediate_size": 64}))
    model = load_model(write(tmp_path / "model.gguf", reference, quantise=GGMLQuantizationType[kind]))
    close = {"F16": 5e-4, "BF16": 4e-3, "Q8_0": 5e-3, "Q4_1": 8e-2}[kind]
    for ours, theirs in [
        (model.unembedding, reference.lm_head.weight),
        (model.attention[0].W_o.reshape(32, 32).T, reference.model.layers[0].self_attn.o_proj.weight),
    ]:
        assert 0 < (ours - theirs).abs().max() < close * theirs.abs().max()
    assert plain_forward(model, IDS).isfinite().all()


# ---- the tokenizer ---------------------------------------------------------------------------------------------------


def tokens(model: Model, text: str) -> list[str]:
    assert model.tokenizer is not None
    return [TOKENS[i] for i in model.tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "digits"),
    [
        ("smollm", ["Ġ", "1", "7", "3", "4", "2"]),
        ("gpt-2", ["Ġ", "173", "42"]),
        ("qwen2", ["Ġ", "1", "7", "3", "4", "2"]),
        ("llama-bpe", ["Ġ", "173", "42"]),
    ],
)
def test_tokenizer(pre: str, digits: list[str], llama, tmp_path: Path) -> None:
    model = load_model(write(tmp_path / "model.gguf", llama, pre))
    assert model.tokenizer is not None
    assert tokens(model, " 17342") == digits
    assert tokens(model, " Mary is") == ["ĠMary", "Ġ", "is"]
    assert tokens(model, "<|im_start|>a<mine>") == ["<|im_start|>", "a", "<mine>"]
    # <|endoftext|>, not the <|im_start|> that the file declares; Qwen2 prompts start with no special token
    assert model.tokenizer.opener == 0 and model.tokenizer.bos == (None if pre == "qwen2" else 0)
    assert model.tokenizer.decode(model.tokenizer.encode("Ünïcode\n\n  ok")) == "Ünïcode\n\n  ok"


def test_splitting_into_words() -> None:
    def words(pre: str, text: str) -> list[str]:
        backend: Backend = byte_level_bpe("test", pre, {t: i for i, t in enumerate(TOKENS)}, MERGES, [])
        return [text[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(text)]

    text = "I'm (12345)\n\nx  y"
    assert words("gpt-2", text) == ["I", "'m", " (", "12345", ")", "\n", "\n", "x", " ", " y"]
    assert words("smollm", text) == [
        "I",
        "'m",
        " (",
        "1",
        "2",
        "3",
        "4",
        "5",
        ")",
        "\n",
        "\n",
        "x",
        " ",
        " y",
    ]
    assert words("qwen2", text) == ["I", "'m", " (", "1", "2", "3", "4", "5", ")\n\n", "x", " ", " y"]
    assert words("llama-bpe", text) == ["I", "'m", " (", "123", "45", ")\n\n", "x", " ", " y"]


def test_bos_where_there_is_no_endoftext(llama, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", llama, "llama-bpe", tokens=["<unused>", "<s>", *TOKENS[2:]])
    tokenizer = load_model(path).tokenizer
    assert tokenizer is not None and tokenizer.bos == 1


def test_tokenizers_we_do_not_know(llama, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    assert "pre-tokenizer 'bloom' is not supported; supported: gpt-2, smollm" in error(
        write(path, llama, "bloom")
    )
    assert "tokenizer 'llama' is not supported" in error(write(path, llama, tokenizer__ggml__model="llama"))
    assert "tokens or merges are missing" in error(write(path, llama, tokenizer__ggml__model="gpt2"))
    with pytest.raises(MechRLError, match="do not fit together"):
        byte_level_bpe("test", "gpt-2", {"a": 0}, ["b c"], [])


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_truncated(llama, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", llama, "smollm")
    whole = path.read_bytes()
    tensors = gguf.GGUFReader(path).data_offset
    for length in [
        0,
        1,
        4,
        8,
        20,
        24,
        30,
        *range(40, tensors, tensors // 97),
        tensors,
        tensors + 5,
        len(whole) - 32,
    ]:
        path.write_bytes(whole[:length])
        assert "not a GGUF file, or a truncated one" in error(path), length


def test_foreign_files(llama, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    assert "not a GGUF file" in error(path)
    path.unlink()
    path.mkdir()
    assert "cannot be read" in error(path)
    path.rmdir()
    assert "no such file" in error(path)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"llama__expert_count": 4}, "a mixture of experts"),
        ({"llama__rope__scaling__type": "yarn"}, "scaled rotary positions"),
        ({"llama__rope__dimension_count": 4}, "partial rotary positions"),
    ],
)
def test_llamas_we_do_not_know(extra: dict, said: str, llama, tmp_path: Path) -> None:
    assert said in error(write(tmp_path / "model.gguf", llama, **extra))


def test_other_architectures_and_incomplete_files(llama, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"

    def bare(architecture: str, **fields: int) -> str:
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in fields.items():
            writer.add_uint32(f"{architecture}.{key}".replace("__", "."), value)
        writer.add_tensor("something.weight", np.zeros((2, 2), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return error(path)

    assert "architecture 'falcon' is not supported; supported: llama, qwen2" in bare("falcon")
    assert "field 'llama.attention.head_count' is missing" in bare("llama")
    assert "no token embedding" in bare("llama", attention__head_count=2, embedding_length=8)


def test_tensor_of_the_wrong_shape_or_name(llama, tmp_path: Path) -> None:
    k_proj = llama.model.layers[0].self_attn.k_proj
    k_proj.weight = torch.nn.Parameter(torch.zeros(16, 32), requires_grad=False)
    assert "has shape (16, 32), the config says (32, 32)" in error(write(tmp_path / "model.gguf", llama))

    llama.model.layers[0].self_attn.q_norm = torch.nn.LayerNorm(8)
    assert "holds the tensor 'blk.0.self_attn.q_norm.weight'" in error(write(tmp_path / "model.gguf", llama))
