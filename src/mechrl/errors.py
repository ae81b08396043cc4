"""The one exception users meet: a single line that says what is wrong and what to do about it."""


class MechRLError(Exception):
    """Bad input or an impossible request. The command line prints the message and nothing else."""


class FileError(MechRLError):
    """A behaviour's file is broken: its rows have to be corrected, and insisting does not help."""


class OutOfMemory(MechRLError):
    """It does not fit into the device's memory beside what else is there: it may at another time."""
