"""One thread for every test: sums come out the same everywhere, and tests do not fight over the cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402 (the number of threads is read when it is imported)

torch.set_num_threads(1)
