"""Many circuits: cells and the workers that compute them, comparisons, the paper's tables and figures."""
