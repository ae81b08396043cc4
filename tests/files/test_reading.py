"""Endless, blocking, exploding or deeply nested files give one line, within a second and in little memory."""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save

from mechrl.cli import app as cli
from mechrl.files.sealed import read_sealed
from tests.agents.paper.small import write_policy
from tests.fuzz.planner import make_network
from tests.viewer.circuits import SMALL, random_circuit

ROW = {
    "clean": "I live in Paris. My city is",
    "corrupt": "I live in Rome. My city is",
    "answer": " Paris",
    "foil": " Rome",
}
SEARCH = ["search", "acdc", "ioi", "--pairs", "2", "--device", "cpu", "--force", "--out", "out"]

DISCOVER = ["discover", "ioi", "--planner", "planner", "--device", "cpu", "--force", "--out", "out"]


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def waits(path: Path) -> None:
    os.mkfifo(path)


def bomb(path: Path) -> None:
    """Ten gigabytes of spaces, which JSON allows anywhere."""
    part = gzip.compress(b" " * 2**28)
    path.write_bytes(part * 40)


def bomb_of_rows(path: Path) -> None:
    path.write_bytes(
        gzip.compress((json.dumps(ROW) + "\n").encode() * 10) + gzip.compress(b"\n" * 2**28) * 40
    )


def deep(path: Path) -> None:
    path.write_text("[" * 200_000)


def deep_inside(path: Path) -> None:
    path.write_text('{"format": 1, "task": ' + '{"a":' * 200_000 + "1" + "}" * 200_001)


def deep_state(path: Path) -> None:
    """Deep nesting in a text of the file that is JSON itself."""
    header = json.dumps({"__metadata__": {"state": "[" * 200_000, "facts": "[" * 200_000}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


KINDS: dict[str, Callable[[Path], None]] = {"zeros": zeros, "a FIFO": waits, "deep": deep, "a bomb": bomb}
# the kind of file, its path, and a command that reads it
READ: dict[str, tuple[str, list[str]]] = {
    "circuit": ("c.json", ["validate", "c.json"]),
    "behaviour": ("mine.jsonl", ["behaviours", "-b", "mine.jsonl"]),
    "behaviour, CSV": ("mine.csv", ["behaviours", "-b", "mine.csv"]),
    "policy": (
        "policy/config.json",
        ["discover", "ioi", "--agent", "paper", "--policy", "policy", "--out", "out"],
    ),
    "policy's run": (
        "policy/run.json",
        ["discover", "ioi", "--agent", "paper", "--policy", "policy", "--out", "out"],
    ),
    "weights": (
        "policy/model.safetensors",
        ["discover", "ioi", "--agent", "paper", "--policy", "policy", "--out", "out"],
    ),
    "state": ("out/state.safetensors", [*SEARCH, "--resume"]),
    "model": ("model/config.json", ["behaviours", "--model", "model"]),
    "GGUF": ("m.gguf", ["behaviours", "--model", "m.gguf"]),
    "planner": ("planner/model.safetensors", DISCOVER),
    "planner's state": ("out/planner.safetensors", [*DISCOVER, "--resume"]),
    "planner's records": ("mine/records/a.safetensors", ["planner", "fit", "mine", "--out", "fitted"]),
    "network of a walk": ("n.safetensors", ["planner", "collect", "--network", "n.safetensors"]),
    "notes": ("c.notes.json", ["export", "c.json", "--no-model", "--html", "page.html"]),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    write_policy(Path("policy"))
    for folder in ("out", "model", "planner", "mine/records"):
        Path(folder).mkdir(parents=True)
    make_network(Path("planner"))


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Excludes the memory of imports."""
    import gguf
    import transformers

    import mechrl.agents.paper.deploy
    import mechrl.models

    assert gguf and transformers and mechrl.models


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    began, memory = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cli.run(command) == 1
    said = capsys.readouterr()
    lines = [
        line for line in said.err.splitlines() if not line.endswith(" …")
    ]  # whatever takes a second is named
    assert said.out == "" and len(lines) == 1 and lines[0].startswith("mechrl: "), said.err
    assert "a bug" not in said.err
    assert time.thread_time() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 400 * 2**10  # kilobytes
    return said.err


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READ)
def test_files_that_never_end(reader: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, command = READ[reader]
    Path(path).unlink(missing_ok=True)
    if reader == "notes":
        random_circuit(SMALL, 20).save(Path("c.json"))
    KINDS[kind](Path(path))
    said = refused(command, capsys)
    assert path in said or Path(path).parent.name in said


def test_a_bomb_in_a_circuit(capsys: pytest.CaptureFixture[str]) -> None:
    bomb(Path("c.json.gz"))
    assert "MB once decompressed" in refused(["validate", "c.json.gz"], capsys)


def test_a_bomb_in_rows(capsys: pytest.CaptureFixture[str]) -> None:
    bomb_of_rows(Path("mine.jsonl"))
    assert "MB once decompressed" in refused(["behaviours", "-b", "mine.jsonl"], capsys)


@pytest.mark.parametrize("name", ["config.json", "run.json"])
def test_nested_deeply_within(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    deep_inside(Path("policy", name))
    refused(READ["policy"][1], capsys)


def test_a_state_that_is_nested_deeply_within(capsys: pytest.CaptureFixture[str]) -> None:
    deep_state(Path("out/state.safetensors"))
    assert "not the state of a search" in refused([*SEARCH, "--resume"], capsys)


@pytest.mark.parametrize("hidden", [0, 20_000, 10**9, 10**12, "8", None])
def test_a_network_is_as_large_as_its_file(hidden: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever size it claims, and without a checksum that would detect it."""
    path = Path("planner/model.safetensors")
    arrays, texts = read_sealed(path)
    texts["config"] = json.dumps(json.loads(texts["config"]) | {"hidden": hidden})
    path.write_bytes(save(arrays, texts))
    assert "not a planner, or damaged" in refused(DISCOVER, capsys)


@pytest.mark.parametrize("width", [0, -1, 50_000, 10**9, 1.5, True, "8", None, [8]])
def test_a_policy_of_no_width(width: object, capsys: pytest.CaptureFixture[str]) -> None:
    known = json.loads(Path("policy/config.json").read_text())
    Path("policy/config.json").write_text(json.dumps(known | {"width": width}))
    assert "policy" in refused(READ["policy"][1], capsys)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"k": "x"}},
        {"settings": {"pairs_seed": []}},
        {"settings": {"prefilter": 3}},
        {"pairs": 10**12},
    ],
    ids=str,
)
def test_what_a_circuit_says_of_its_pairs_is_checked_when_it_is_read(
    change: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("c.json").write_text(json.dumps(random_circuit(SMALL, 20).to_json() | change))
    assert "c.json: a field is missing or wrong" in refused(["validate", "c.json"], capsys)


def test_whole_compressed_files_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    """In one stream or in several, as `cat` produces."""
    content = json.dumps(random_circuit(SMALL, 20).to_json()).encode()
    Path("c.json.gz").write_bytes(gzip.compress(content[:100]) + gzip.compress(content[100:]))
    assert cli.run(["export", "c.json.gz", "--no-model", "--html", "page.html"]) == 0
