"""How good a circuit is, beyond the f it was searched for."""
