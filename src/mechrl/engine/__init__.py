"""The engine: measures the faithfulness of circuits."""

from mechrl.engine.engine import Engine, Gradient
from mechrl.engine.ledger import Ledger
from mechrl.engine.many import ManyEngines

__all__ = ["Engine", "Gradient", "Ledger", "ManyEngines"]
