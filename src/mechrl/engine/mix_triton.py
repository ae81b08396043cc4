from __future__ import annotations
def available(like): return False
def mix_and_normalise(*a): raise NotImplementedError
