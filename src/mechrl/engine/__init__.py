"""The faithfulness of circuits."""

from mechrl.engine.engine import Engine, Gradient

__all__ = ["Engine", "Gradient"]
