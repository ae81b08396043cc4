"""One thread for every test: sums come out the same everywhere, and tests do not fight over the cores.

Shells start background jobs with SIGINT ignored, and processes inherit that: tests that send it must not depend on who started them.
"""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
