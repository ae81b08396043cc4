"""Tables: every number in every format, with its spread."""

from __future__ import annotations

import csv
import io
import json

import pytest

from mechrl.report.tables import Column, Table, dumps, show
from mechrl.stats import Spread

TABLE = Table(
    "t",
    "A title",
    "What it shows.",
    (Column("behaviour", text=True), Column("edges", 0, "ACDC"), Column("f", 3, "ACDC"), Column("reached")),
    (("a|b, <c>", Spread.of([10, 14]), 0.91234, True), ("d", None, Spread.of([0.5]), False)),
    "mechrl compare",
    ("A note.",),
)


def test_texts() -> None:
    assert TABLE.texts() == [["a|b, <c>", "12 ± 3", "0.912", "yes"], ["d", "–", "0.500", "no"]]
    assert show(12345) == "12,345" and show(-0.0001, 2) == "0.00" and show(1234.5, 1) == "1,234.5"
    assert TABLE.groups() == [("", 1), ("ACDC", 2), ("", 1)]


def test_csv_has_full_precision_and_the_spread() -> None:
    first, second = csv.DictReader(io.StringIO(TABLE.to_csv()))
    assert first["behaviour"] == "a|b, <c>" and float(first["ACDC: edges"]) == 12.0
    assert float(first["ACDC: edges sd"]) == pytest.approx(8**0.5) and first["ACDC: edges n"] == "2"
    assert float(first["ACDC: f"]) == 0.91234 and (second["ACDC: f sd"], second["ACDC: f n"]) == ("", "1")
    assert second["ACDC: edges"] == ""


def test_json_and_markdown() -> None:
    known = json.loads(dumps(TABLE))
    assert known["command"] == "mechrl compare" and known["rows"][0]["ACDC: edges"] == {
        "mean": 12.0,
        "sd": 8**0.5,
        "n": 2,
    }
    text = TABLE.to_markdown()
    assert "a\\|b" in text and "`mechrl compare`" in text and "A note." in text
    prompt = Table("t", "", "", (Column("prompt", text=True),), (("def f():\n    pass",),), "").to_markdown()
    assert "| def f(): pass |" in prompt  # a row is a line


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="as many values"):
        Table("t", "", "", (Column("a"),), (("x", "y"),), "")
