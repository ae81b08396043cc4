"""Per-behaviour searches, one file each. All take a `Problem` and return a `State` (problem.py)."""
