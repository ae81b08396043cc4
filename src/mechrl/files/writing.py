"""Writes files whole or not at all, and only where a file may be. No heavy imports."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from mechrl.errors import MechRLError

REPEAT = ", then repeat the command"
_ADVICE = {
    errno.ENOSPC: f"make room{REPEAT}",
    errno.EDQUOT: f"make room{REPEAT}",
    errno.EFBIG: f"raise the limit on the size of files (`ulimit -f`){REPEAT}",
    errno.EACCES: "change its permissions or choose another place",
    errno.EPERM: "change its permissions or choose another place",
    errno.EROFS: "choose another place",
    errno.ENOTDIR: "a folder on the way to it is a file; choose another place",
    errno.EEXIST: "it is in the way; choose another place",
    errno.EISDIR: "give the name of a file in it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check the name",
}


class CannotWrite(MechRLError):
    """The disk is full, a limit is reached, or the path cannot hold a file. What was to be written is still in memory."""


def advice(number: int | None) -> str:
    """How to fix an operating-system error."""
    return _ADVICE.get(number or 0, f"check the path{REPEAT}")


def cache_folder() -> Path:
    """The folder for downloads and derived data: $MECHRL_CACHE, else $XDG_CACHE_HOME/mechrl, else ~/.cache/mechrl."""
    if own := os.environ.get("MECHRL_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mechrl"


def check_replaceable(path: Path) -> None:
    """Refuses to replace anything but a regular file: replacing a FIFO or a device breaks its users, and a link may point anywhere."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # missing or inaccessible: writing will report that
    if not stat.S_ISREG(mode):
        raise CannotWrite(
            f"{path}: cannot be written (it is {_kind(mode)}, not a regular file); choose another name"
        )


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def write_atomically(path: Path, content: bytes) -> None:
    """Readers of `path` see the old file or the new one, never half of one."""
    check_replaceable(path)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a unique name: an existing link of that name is not followed, and two threads do not share one
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as exc:  # also on Ctrl-C, leave nothing behind
        with suppress(OSError):  # the file or its folder may not exist
            temporary.unlink()
        if not isinstance(exc, OSError):
            raise
        a_file = isinstance(exc, FileExistsError | NotADirectoryError)
        why = "a folder on the way to it is a file" if a_file else exc.strerror
        what = "choose another place" if a_file else advice(exc.errno)
        raise CannotWrite(f"{path}: cannot be written ({why}); {what}") from exc


def check_folder(folder: Path) -> None:
    """Refuses a folder that cannot be written to, before any work is done."""
    _check_place(folder, folder)


def check_file(file: Path) -> None:
    """The same for a file."""
    if file.is_dir():
        raise MechRLError(f"{file}: is a folder; give the name of a file in it")
    check_replaceable(file)
    _check_place(file, file.parent)


def _check_place(what: Path, folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents, Path()) if path.exists())
    if not there.is_dir():
        raise MechRLError(f"{what}: cannot be written ({there} is not a folder); choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise MechRLError(f"{what}: cannot be written ({there} is read-only); choose another place")
