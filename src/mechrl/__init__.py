"""MechRL: circuit discovery as a learned, exact and fast procedure."""

import os

# Threads that wait for work must sleep, not spin: with another busy process on the machine, spinning made a run of many small
# operations 27 times slower. Only OpenMP's first start reads it, so it has to be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
