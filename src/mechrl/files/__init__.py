"""Files: written whole or not at all, read with limits, protected by checksums, one writer per folder. No heavy imports."""

from mechrl.files.writing import (
    REPEAT,
    CannotWrite,
    advice,
    cache_folder,
    check_file,
    check_folder,
    check_replaceable,
    write_atomically,
)

__all__ = [
    "REPEAT",
    "CannotWrite",
    "advice",
    "cache_folder",
    "check_file",
    "check_folder",
    "check_replaceable",
    "write_atomically",
]
