"""Pass counts: only a ledger changes them, and engines may share one."""

from __future__ import annotations

import numpy as np
import pytest

from mechrl.engine import Engine, Ledger
from tests.tiny import tiny, tiny_pairs

WHOLE = np.ones((3, tiny("gpt2").graph.n_edges), dtype=bool)


def test_a_forward_is_one_pass_and_a_backward_two_for_20_pairs() -> None:
    engine = Engine(tiny("gpt2"), tiny_pairs())
    assert engine.passes == 0 and engine.price == engine.n_pairs / 20
    engine.faithfulness(WHOLE)
    assert engine.passes == pytest.approx(3 * engine.price)
    engine.gradient(WHOLE)
    assert engine.passes == pytest.approx(3 * engine.price + 3 * 3 * engine.price)


def test_nobody_overwrites_a_count() -> None:
    with pytest.raises(AttributeError):
        Engine(tiny("gpt2"), tiny_pairs()).passes = 0.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Ledger().passes = 0.0  # type: ignore[misc]


def test_engines_share_an_account() -> None:
    one = Engine(tiny("gpt2"), tiny_pairs())
    other = Engine(tiny("gpt2"), tiny_pairs(8), ledger=one.ledger)
    one.faithfulness(WHOLE)
    other.faithfulness(WHOLE[:1])
    assert one.passes == other.passes == pytest.approx(3 * one.price + other.price)


def test_what_is_free_is_billed_and_not_charged_even_if_it_fails() -> None:
    ledger = Ledger()
    ledger.charge(2.0)
    with ledger.free() as outer:
        ledger.charge(3.0)
        with ledger.free() as inner:
            ledger.charge(5.0)
    assert (ledger.passes, outer.passes, inner.passes) == (2.0, 3.0, 5.0)
    with pytest.raises(ZeroDivisionError), ledger.free():
        ledger.charge(1 / 0)
    with pytest.raises(KeyError), ledger.free():
        ledger.charge(7.0)
        raise KeyError
    assert ledger.passes == 2.0
    ledger.restore(40.0)
    assert ledger.passes == 40.0
