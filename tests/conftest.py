"""One thread for every test: sums come out the same everywhere, and tests do not fight over the cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
