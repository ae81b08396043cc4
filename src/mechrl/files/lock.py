"""Lets one command at a time write to a folder: two would mix their files. The operating system releases the lock when the process ends."""

from __future__ import annotations

import os
import re
import shlex
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mechrl.errors import MechRLError
from mechrl.files import CannotWrite, advice

try:
    import fcntl
except ImportError:  # not a POSIX system: there is no locking
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
# temporary files that a killed `write_atomically` leaves
_LEFT_BEHIND = re.compile(r"\..+\.\d+\.[0-9a-f]{8}\.tmp")
_PLACES = ("", "cells", "records")  # of a folder; anything else in it may be another command's
_held: set[tuple[str, int]] = set()  # folder and thread, so that a command may lock its own folder again


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, or says which process does. Folders created only for the lock are removed again."""
    key = (os.path.realpath(folder), threading.get_ident())
    if fcntl is None or key in _held:
        yield
        return
    path = folder / LOCK
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        descriptor = _lock(path)
    except OSError as exc:
        _remove(made)
        raise CannotWrite(f"{folder}: cannot be written ({exc.strerror}); {advice(exc.errno)}") from exc
    _held.add(key)
    try:
        for left in (left for place in _PLACES for left in (folder / place).glob(".*.tmp")):
            if _LEFT_BEHIND.fullmatch(left.name):
                left.unlink(missing_ok=True)
        yield
    finally:
        _held.discard(key)
        with suppress(OSError):
            path.unlink()  # while it is held: whoever opened it meanwhile notices that it is gone
        os.close(descriptor)
        _remove(made)


def _lock(path: Path) -> int:
    """A descriptor of the locked file, with our process named in it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except FileNotFoundError:  # the process that made the folder for its lock has just removed both
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise MechRLError(f"{path}: not a file that MechRL made; remove it, or choose another folder")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 400).decode(errors="replace").strip()
                by = f" ({holder})" if holder else ""
                raise MechRLError(
                    f"{path.parent}: another command is writing there{by}; wait for it, or choose another folder"
                ) from None
            except OSError:  # a file system without locks: running unprotected is better than not running
                return descriptor
            with suppress(FileNotFoundError):  # its last holder may have removed it before we locked it
                if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                    with suppress(OSError):  # a full disk: then no process is named
                        os.ftruncate(descriptor, 0)
                        os.pwrite(descriptor, _who().encode(), 0)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _who() -> str:
    command = shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}: {command[:200]}\n"


def _remove(made: list[Path]) -> None:
    """Removes folders that are still empty, innermost first."""
    with suppress(OSError):
        for place in made:
            place.rmdir()
