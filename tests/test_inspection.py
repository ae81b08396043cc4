"""`mechrl check`: what a behaviour file contains, what is wrong with it, what the model predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mechrl.behaviours import Behaviour, get_behaviour
from mechrl.cli import app as cli
from mechrl.engine import Engine
from mechrl.errors import MechRLError
from mechrl.inspection import inspect
from mechrl.models import load_model
from tests.test_gate import who


@pytest.fixture(scope="module")
def toy():
    return load_model("toy")


def file(folder: Path, rows: list[dict]) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_it_counts_rows_parts_and_tokens(toy) -> None:
    rows = who()
    seen = inspect(toy, Behaviour.from_pairs("mine", rows))
    assert seen.rows == sum(seen.parts.values()) == sum(seen.lengths.values()) == len(rows)
    assert set(seen.answers) == {row["answer"] for row in rows} and not seen.problems
    assert seen.verdict is not None and seen.verdict.exhibited


def test_what_the_model_says_is_what_it_says(toy) -> None:
    behaviour = Behaviour.from_pairs("mine", who())
    pairs = behaviour.pairs(toy.tokenizer, 8)
    p = Engine(toy, pairs).clean_logits.softmax(-1)
    for i, said in enumerate(inspect(toy, behaviour).said):
        assert said.clean == pairs.texts[i][0] and said.p_top == pytest.approx(float(p[i].max()), abs=1e-6)
        assert said.p_answer == pytest.approx(float(p[i, list(pairs.answers[i])].sum()), abs=1e-6)
        assert said.right == (int(p[i].argmax()) in pairs.answers[i])


def test_every_broken_row_is_listed_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = who()
    for i in (2, 5):
        rows[i]["answer"] = " gave a"
    path = file(tmp_path, rows)
    assert cli.run(["check", path]) == 1
    shown = capsys.readouterr()
    assert f"{path}, line 3: the answer" in shown.out and f"{path}, line 6: the answer" in shown.out
    assert shown.err.strip() == f"mechrl: {path}: 2 problems; correct them and check again"


def test_a_good_file_ends_with_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, who())
    assert cli.run(["check", path]) == 0
    said = capsys.readouterr().out
    assert "toy exhibits it" in said and said.splitlines()[-1].startswith(f"next: mechrl discover {path}")
    assert cli.run(["check", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["exhibited"]


def test_a_built_in_behaviour_is_no_file(toy) -> None:
    with pytest.raises(MechRLError, match="built-in"):
        inspect(toy, get_behaviour("ioi"))


def test_behaviours_judges_the_others_and_fails_for_a_broken_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(tmp_path, [*who()[:5], who()[5] | {"answer": " gave a"}])
    assert cli.run(["behaviours", "-b", "acronyms", "-b", path, "--pairs", "4"]) == 1
    shown = capsys.readouterr()
    assert (
        "acronyms" in shown.out and "1 of 1 exhibited" in shown.out and "prompts open with <bos>" in shown.out
    )
    assert (
        "--force" not in shown.err
        and f"{path}, line 6: the answer ' gave a' is not a single token" in shown.err
    )


def test_a_search_refuses_a_broken_file_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, [*who()[:5], who()[5] | {"answer": " gave a"}])
    assert cli.run(["search", "greedy", path, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "line 6: the answer" in said and "does not exhibit" not in said and "--force" not in said


def test_the_table_is_no_wider_than_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, who(wrong=True))
    assert cli.run(["behaviours", "-b", path]) == 0
    shown = capsys.readouterr().out
    table = [line.rstrip() for line in shown.splitlines() if " mine " in line or "─" in line]
    assert table and max(map(len, table)) <= 120 and "mine: no, " in shown


def test_a_circuit_keeps_its_behaviour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = file(tmp_path, who()), str(tmp_path / "out")
    assert cli.run(["search", "greedy", path, "--pairs", "6", "--out", out, "--holds-on", "discovery"]) == 0
    circuit = f"{out}/circuit.json"
    Path(path).unlink()  # only the circuit is left
    assert cli.run(["validate", circuit, "--json"]) == 0
    assert cli.run(["export", circuit, "--html", f"{out}/c.html"]) == 0
    shown = capsys.readouterr()
    assert "no answers" not in shown.err
    other = file(tmp_path, who("While"))
    assert cli.run(["validate", circuit, "--behaviour", other]) == 1
    assert "other rows than the circuit was found with" in capsys.readouterr().err
