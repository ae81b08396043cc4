"""The exceptions for users: a single line that says what is wrong and how to fix it."""


class MechRLError(Exception):
    """Bad input or an impossible request. The command line prints the message and nothing else."""


class FileError(MechRLError):
    """A behaviour's file is broken: its rows have to be corrected, and --force does not help."""


class OutOfMemory(MechRLError):
    """The work does not fit into the device's free memory; it may fit when other processes use less."""
