"""The command line as a user meets it: real processes, exit codes, one-line errors, JSON on stdout and nothing else there."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest


def mechrl(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mechrl.cli", *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_help_is_quick():
    mechrl("--help")  # compile once
    begin = time.perf_counter()
    done = mechrl("--help")
    assert done.returncode == 0 and "behaviours" in done.stdout
    assert time.perf_counter() - begin < 2  # half a second on an idle machine; tests share theirs


def test_models_lists_the_embedded_one():
    rows = json.loads(mechrl("models", "--json").stdout)
    assert {"toy", "smollm2", "gpt2"} <= {row["name"] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["behaviours", "--model", "no/such/model/at/all"], "no such directory"),
        (["behaviours", "--model", "missing.gguf"], "missing.gguf"),
        (["behaviours", "-b", "gendered-pronoum"], "gendered-pronoun"),
        (["behaviours", "-b", "missing.jsonl"], "missing.jsonl"),
        (["behaviours", "--device", "cuda:99"], "cuda:99"),
        (["bench", "engine", "--circuits", "1,x"], "--circuits"),
    ],
)
def test_bad_input_is_one_line_and_a_failure(arguments, message):
    done = mechrl(*arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_debug_shows_the_traceback():
    assert "Traceback" in mechrl("--debug", "behaviours", "-b", "missing.jsonl").stderr


def test_the_gate_in_json():
    done = mechrl("behaviours", "--model", "toy", "--pairs", "8", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {"name", "family", "split", "accuracy", "kl_cut", "exhibited"} <= set(rows[0])
    assert [row["name"] for row in rows[:2]] == ["ioi", "ioi-2"]


def test_the_gate_on_a_users_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [
        {"clean": f"When {a} and {b} went to the store, {b} gave a book to"}
        | {"corrupt": f"When {c} and {b} went to the store, {a} gave a book to"}
        | {"answer": f" {a}", "foil": f" {b}", "part": "test"}
        for a, b, c in [("John", "Mary", "Paul"), ("Mary", "John", "Anna"), ("Paul", "Anna", "John")]
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    done = mechrl("behaviours", "-b", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["pairs"] == 3


def test_the_benchmark_in_json():
    done = mechrl("bench", "engine", "--model", "toy", "--circuits", "2", "--repeats", "1", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["yardstick_ms"] > 0 and result["peak_memory_mb"] > 0
    assert {"edges", "circuits", "ms_per_circuit", "circuits_per_second"} <= set(result["rows"][0])
