"""MechRL: circuit discovery as a learned, exact and fast procedure."""

__version__ = "0.1.0"
