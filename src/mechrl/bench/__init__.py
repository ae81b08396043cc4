"""How fast the engine and the searches are."""
