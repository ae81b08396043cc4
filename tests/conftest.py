"""Runs every test with one thread, so that sums are the same everywhere and tests do not compete for cores.

Shells start background jobs with SIGINT ignored, and processes inherit this; it is undone here for tests that send SIGINT.
"""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
