"""Behaviours from files: what is read, how rows are split, and the error for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechrl.behaviours import PARTS, Behaviour, get_behaviour, load_behaviour
from mechrl.behaviours.custom import recurring
from mechrl.errors import FileError, MechRLError
from tests.behaviours.tokenizers import gpt2, word_level

CITIES = ["Paris", "London", "Berlin", "Madrid", "Rome", "Moscow", "Tokyo", "Cairo"]
GOOD = [
    {
        "clean": f"I live in {a}. My city is",
        "corrupt": f"I live in {b}. My city is",
        "answer": f" {a}",
        "foil": f" {b}",
    }
    for a, b in zip(CITIES[::2], CITIES[1::2], strict=True)
]


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "cities.jsonl"
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    return path


def test_jsonl_works_wherever_a_name_does(tmp_path: Path) -> None:
    path = jsonl(tmp_path, *GOOD)
    behaviour = get_behaviour(str(path))
    assert behaviour.name == "cities" and behaviour == load_behaviour(path) == get_behaviour(path)
    taken = [text for part in PARTS for text, _ in behaviour.pairs(gpt2(), part=part).texts]
    assert sorted(taken) == sorted(row["clean"] for row in GOOD)
    assert [len(behaviour.pairs(gpt2(), part=part)) for part in PARTS] == [2, 1, 1]
    assert len(behaviour.pairs(gpt2(), 1)) == 1


def test_csv_says_the_same(tmp_path: Path) -> None:
    lines = ["clean,corrupt,answer,foil,metric"]
    lines += [
        f'{r["clean"]},"{r["corrupt"]}",{r["answer"]}| the,{r["foil"]},probability-difference' for r in GOOD
    ]
    path = tmp_path / "cities.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())  # as saved by a spreadsheet
    behaviour = load_behaviour(path)
    assert behaviour.metric == "probability-difference"
    pairs = behaviour.pairs(gpt2(), part="discovery")
    same = load_behaviour(jsonl(tmp_path, *GOOD)).pairs(gpt2(), part="discovery")
    assert set(pairs.texts) == set(same.texts) and all(
        answers[1] == gpt2().single(" the") for answers in pairs.answers
    )


def test_parts_can_be_written(tmp_path: Path) -> None:
    rows = [
        {**row, "part": part} for row, part in zip(GOOD, ["test", "test", "discovery", "test"], strict=True)
    ]
    behaviour = load_behaviour(jsonl(tmp_path, *rows))
    assert len(behaviour.pairs(gpt2(), part="test")) == 3 and len(behaviour.pairs(gpt2())) == 1
    with pytest.raises(MechRLError, match="'cities' has no validation pairs"):
        behaviour.pairs(gpt2(), part="validation")


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda t: t[0] != t[1]),
        min_size=1,
        unique=True,
    )
)
def test_rows_that_share_a_prompt_share_a_part(rows: list[tuple[int, int]]) -> None:
    texts = [{"clean": f"p {a}", "corrupt": f"p {b}", "answer": " x", "foil": " y"} for a, b in rows]
    source = Behaviour.from_pairs("b", texts).source
    assert isinstance(source, tuple)
    clean = [{row.clean for row in source if row.part == part} for part in PARTS]
    assert sum(map(len, clean)) == len(set().union(*clean)) and clean[0]  # a clean prompt is in only one part
    prompts = [{p for row in source if row.part == part for p in (row.clean, row.corrupt)} for part in PARTS]
    leaks = sum(
        not (prompts[0] | prompts[1]).isdisjoint((row.clean, row.corrupt))
        for row in source
        if row.part == "test"
    )
    assert recurring(source) == leaks
    by_prompts = {(row.clean, row.corrupt): row.part for row in source}
    reordered = Behaviour.from_pairs("b", texts[::-1]).source
    assert isinstance(reordered, tuple) and {(row.clean, row.corrupt) for row in reordered} == set(by_prompts)


def shuffled(n: int, seed: int) -> list[dict[str, str]]:
    """A common first attempt: every corrupted prompt is another row's clean prompt."""
    order = list(range(n))
    Random(seed).shuffle(order)
    return [
        {"clean": f"p {a}", "corrupt": f"p {b}", "answer": f" {a}", "foil": f" {b}"}
        for a, b in zip(order, order[1:] + order[:1], strict=True)
    ]


@settings(deadline=None)
@given(st.integers(8, 80), st.integers(0, 9))
def test_rows_shuffled_into_pairs_have_every_part(n: int, seed: int) -> None:
    source = Behaviour.from_pairs("b", shuffled(n, seed)).source
    assert isinstance(source, tuple)
    size = {part: sum(row.part == part for row in source) for part in PARTS}
    assert (
        size["discovery"] == (n + 1) // 2
        and abs(size["test"] - n / 4) <= 1
        and abs(size["validation"] - n / 4) <= 1
    )
    assert recurring(source) > 0


@settings(deadline=None)
@given(st.integers(4, 60))
def test_rows_that_share_no_prompt_are_dealt_so_that_no_part_knows_anothers(n: int) -> None:
    rows = [{"clean": f"p {i}", "corrupt": f"q {i}", "answer": " x", "foil": " y"} for i in range(n)]
    assert recurring(Behaviour.from_pairs("b", rows).source) == 0  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(GOOD), min_size=4, max_size=4, unique_by=lambda r: r["clean"]),
    st.sampled_from(["kl", None]),
)
def test_the_rows_of_a_behaviour_make_it_again(rows: list[dict], metric: str | None) -> None:
    written = Behaviour.from_pairs("b", [row | ({"metric": metric} if metric else {}) for row in rows])
    again = Behaviour.from_pairs("b", json.loads(json.dumps(written.rows())))
    assert again.rows() == written.rows() and again.metric == written.metric
    assert [again.pairs(gpt2(), part=part) for part in PARTS] == [
        written.pairs(gpt2(), part=part) for part in PARTS
    ]


def test_a_template_has_no_rows() -> None:
    assert get_behaviour("ioi").rows() == ()


def test_all_broken_lines_are_counted(tmp_path: Path) -> None:
    wrong = [{**row, "answer": "Ouagadougou"} for row in GOOD[:3]]
    behaviour = load_behaviour(jsonl(tmp_path, *wrong, GOOD[3]))
    assert [problem.split(": ")[0].rpartition(", ")[2] for problem in behaviour.problems(gpt2())] == [
        "line 1",
        "line 2",
        "line 3",
    ]
    with pytest.raises(
        FileError, match=r"line 1: .* \(and 2 more rows are wrong: `mechrl check .*cities.jsonl` lists them\)"
    ):
        behaviour.pairs(gpt2())


def test_words_a_tokenizer_does_not_know_are_named_and_not_called_identical(tmp_path: Path) -> None:
    rows = [{**row, "clean": "When zyx is", "corrupt": "When zyw is"} for row in GOOD]
    with pytest.raises(
        FileError, match="line 1: the prompt has words that the tokenizer does not know: 'zyx', 'zyw'"
    ):
        load_behaviour(jsonl(tmp_path, rows[0], *GOOD[1:])).pairs(word_level())


ROW = GOOD[0]
MISTAKES = {
    "broken JSON": ('{"clean": ', "line 2: not JSON"),
    "not an object": ("[1]", "line 2: not a JSON object"),
    "missing field": ({k: v for k, v in ROW.items() if k != "foil"}, "line 2: 'foil' is missing"),
    "empty field": ({**ROW, "answer": []}, "line 2: 'answer' is missing"),
    "no text": ({**ROW, "clean": 3}, "line 2: 'clean' must be text, not 3"),
    "list of prompts": ({**ROW, "clean": ["a", "b"]}, "line 2: 'clean' and 'corrupt' take one text each"),
    "identical prompts": (
        {**ROW, "corrupt": ROW["clean"]},
        "line 2: the clean and the corrupted prompt are identical",
    ),
    "answer among foils": (
        {**ROW, "foil": [" x", ROW["answer"]]},
        "line 2: ' Paris' is both an answer and a foil",
    ),
    "same pair again": (GOOD[1], "line 2: the same pair of prompts as in .*line 1"),
    "unknown metric": (
        {**ROW, "metric": ["kl"]},
        r"line 2: unknown metric \['kl'\]; there are logit-difference",
    ),
    "another metric": (
        {**ROW, "metric": "kl"},
        r"line 2: another metric \(kl\) than in .*line 1 \(logit-difference\)",
    ),
    "half a character": ({**ROW, "answer": "\ud83d"}, "line 2: 'answer' has half of a surrogate pair"),
    "endless number": (f'{{"clean": {"1" * 5000}}}', "line 2: not JSON"),
    "unknown part": ({**ROW, "part": "train"}, "line 2: unknown part 'train'"),
    "part in one row": ({**ROW, "part": "test"}, "line 2: give every row a 'part', or none"),
    "unequal lengths": (
        {**ROW, "corrupt": "I live in Oslo."},
        "line 2: the clean prompt has 9 tokens, the corrupted one 6",
    ),
    "multi-token answer": (
        {**ROW, "answer": " Ouagadougou"},
        "line 2: the answer ' Ouagadougou' is not a single token$",
    ),
    "forgotten space": (
        {**ROW, "foil": "Helsinki"},
        "line 2: the foil 'Helsinki' is not a single token; with a space before it",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, mistake: str) -> None:
    row, message = MISTAKES[mistake]
    path = jsonl(tmp_path, GOOD[1], row, *GOOD[2:])
    with pytest.raises(MechRLError, match=f"cities.jsonl, {message}") as caught:
        load_behaviour(path).pairs(gpt2())
    assert "\n" not in str(caught.value)


def test_a_prompt_longer_than_the_context(tmp_path: Path) -> None:
    with pytest.raises(
        MechRLError, match=r"cities.jsonl, line 1: the prompt has 9 tokens, the model's context is 8"
    ):
        load_behaviour(jsonl(tmp_path, *GOOD)).pairs(gpt2(), n_ctx=8)


def test_a_metric_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MechRLError, match=r"line 1: unknown metric 'bleu'; there are logit-difference"):
        load_behaviour(jsonl(tmp_path, *({**row, "metric": "bleu"} for row in GOOD)))


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.jsonl").write_text(content)
    with pytest.raises(MechRLError, match=r"empty.jsonl: no rows; each needs clean, corrupt, answer, foil"):
        load_behaviour(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no rows"),
        (b"clean,corrupt,answer,foil\n", "no rows"),
        (b"clean,corrupt,answer\na,b, c\n", "line 2: 'foil' is missing"),
        (b"clean,corrupt,answer,foil\na,b, c\n", "line 2: 'foil' is missing"),
        (b"clean,corrupt,answer,foil\na,b, c, d, e\n", "line 2: more values than fields"),
        (b'clean,corrupt,answer,foil\n"a,b, c, d\n', "line 2: not CSV"),
        (b"clean,corrupt,answer,foil\na,b, c, d\n\xff,b, c, d\n", "line 3: not UTF-8"),
    ],
)
def test_mistakes_in_csv(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "cities.csv").write_bytes(content)
    with pytest.raises(MechRLError, match=f"cities.csv.*{message}"):
        load_behaviour(tmp_path / "cities.csv")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MechRLError, match=r"absent.jsonl: no such file"):
        get_behaviour(str(tmp_path / "absent.jsonl"))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(MechRLError, match=r"notes.txt: a behaviour's file ends in .jsonl or .csv"):
        get_behaviour(tmp_path / "notes.txt")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(MechRLError, match=r"folder.csv: cannot be read"):
        get_behaviour(tmp_path / "folder.csv")


def test_few_lines_of_python_name_the_row() -> None:
    with pytest.raises(MechRLError, match="mine, row 2: 'clean' is missing"):
        Behaviour.from_pairs("mine", [GOOD[0], {"corrupt": "x"}])
    with pytest.raises(MechRLError, match="mine: no rows"):
        Behaviour.from_pairs("mine", [])
