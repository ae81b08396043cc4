"""The real SmolLM2: downloaded, verified, converted, cached; its logits and its tokenizer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers

from mechrl.errors import MechRLError
from mechrl.models import Model, load_model, smollm2
from tests.models.plain_forward import plain_forward
from tests.models.test_loading import entries

pytestmark = pytest.mark.real

PROMPTS = [
    "When Mary and John went to the store, John gave a drink to",
    "The war lasted from the year 1732 to the year 17",
    "def f(self, files, obj): return",
]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("smollm2")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    """The GGUF from the wheel, downloaded as for a user without a cache."""
    folder = tmp_path_factory.mktemp("wheel")
    local, os.environ[smollm2.LOCAL_GGUF] = os.environ.get(smollm2.LOCAL_GGUF), ""
    try:
        return smollm2._gguf(folder)
    finally:
        if local is None:
            del os.environ[smollm2.LOCAL_GGUF]
        else:
            os.environ[smollm2.LOCAL_GGUF] = local


def test_shape(model: Model) -> None:
    assert (model.graph.n_nodes, model.graph.n_edges) == (302, 70651)
    assert (model.name, model.spec.vocab_size, model.spec.n_ctx) == ("smollm2", 49152, 8192)


def test_tokenizer(model: Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.bos == 0 and tokenizer.decode([0]) == "<|endoftext|>"
    assert [tokenizer.decode([i]) for i in tokenizer.encode("1732")] == ["1", "7", "3", "2"]
    assert [tokenizer.decode([i]) for i in tokenizer.encode(" 1732")] == [" ", "1", "7", "3", "2"]
    assert tokenizer.single(" Mary") is not None and tokenizer.single(" John") is not None
    for prompt in PROMPTS:
        assert tokenizer.decode(tokenizer.encode(prompt)) == prompt


@torch.no_grad()
def test_logits_are_those_of_transformers(model: Model, gguf_file: Path) -> None:
    assert model.tokenizer is not None
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    ).eval()
    for prompt in PROMPTS:
        ids = torch.tensor([model.tokenizer.prompt(prompt)])
        # 5e-5 measured; in float32 either side is 1.1e-4 away from float64
        torch.testing.assert_close(plain_forward(model, ids), reference(ids).logits, atol=2e-4, rtol=0)


def test_it_knows_something(model: Model) -> None:
    assert model.tokenizer is not None
    logits = plain_forward(model, torch.tensor([model.tokenizer.prompt(PROMPTS[0])]))
    assert model.tokenizer.decode([int(logits[0, -1].argmax())]) == " Mary"


def test_loads_fast_from_the_cache(model: Model) -> None:
    start = time.perf_counter()
    assert load_model("smollm2").checksum == model.checksum
    assert time.perf_counter() - start < 10  # about 2 s on an idle machine


def converting(cache: Path, gguf_file: Path, code: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MECHRL_CACHE": str(cache), smollm2.LOCAL_GGUF: str(gguf_file)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


CONVERT = "from mechrl.models import smollm2; smollm2.directory()"


def test_killed_while_converting(model: Model, gguf_file: Path, tmp_path: Path, monkeypatch) -> None:
    child = converting(tmp_path, gguf_file, CONVERT)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("smollm2-scratch-*/converted")):  # the weights are being written
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert [name.startswith("smollm2-scratch-") for name in entries(tmp_path)] == [
        True
    ]  # no model, complete or partial

    # the next two start at once: one cleans up and converts, the other waits
    children = [converting(tmp_path, gguf_file, CONVERT) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert entries(tmp_path) == [f"smollm2-{smollm2.GGUF_SHA256[:8]}"]
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path))
    assert load_model("smollm2").checksum == model.checksum


def test_the_gguf_file_itself_loads(model: Model, gguf_file: Path) -> None:
    direct = load_model(gguf_file)
    assert direct.checksum == model.checksum
    assert direct.tokenizer is not None and model.tokenizer is not None
    assert (
        direct.tokenizer.bos is None
    )  # as its add_bos_token says; under its own name it starts with <|endoftext|>
    assert direct.tokenizer.opened("yes").prompt(PROMPTS[1]) == model.tokenizer.prompt(PROMPTS[1])


def test_file_that_was_tampered_with(gguf_file: Path, tmp_path: Path, monkeypatch) -> None:
    """The real GGUF with one byte changed."""
    changed = bytearray(gguf_file.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "changed.gguf").write_bytes(changed)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(smollm2.LOCAL_GGUF, str(tmp_path / "changed.gguf"))
    with pytest.raises(MechRLError, match="expected b179c9523d0e6a0f"):
        load_model("smollm2")
    assert entries(tmp_path / "cache") == []
