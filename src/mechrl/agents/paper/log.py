"""metrics.jsonl, and TensorBoard if it is installed. A resumed run drops the entries beyond its checkpoint from both.

Lines that cannot be written, on a full disk, are kept in order for the next attempt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from mechrl.files import CannotWrite, advice
from mechrl.files.saving import Saving
from mechrl.messages import say

METRICS = "metrics.jsonl"


class Log:
    """The log of one run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self._board: Any = None
        self._waiting, self._saving = b"", Saving()

    @contextmanager
    def after(self, iteration: int) -> Iterator[Log]:
        """The log, to be continued after an iteration."""
        self._to_board(lambda: self._open_board(iteration))
        try:
            yield self
        finally:
            self._saving.attempt(self.flush)
            if self._board is not None:
                self._to_board(self._board.close)

    def write(self, row: dict[str, Any]) -> None:
        self._waiting += (json.dumps(row) + "\n").encode()
        self._saving.attempt(self.flush)
        for key, value in row.items():
            if self._board is not None and key != "iteration" and value is not None:
                self._to_board(partial(self._board.add_scalar, key, value, row["iteration"]))

    def flush(self) -> None:
        """Appends the waiting lines: all or none."""
        if not self._waiting:
            return
        try:
            with open(self.path, "ab", buffering=0) as file:
                size, rest = os.fstat(file.fileno()).st_size, memoryview(self._waiting)
                try:
                    while rest:
                        rest = rest[file.write(rest) :]
                except OSError:
                    file.truncate(size)
                    raise
        except OSError as exc:
            raise CannotWrite(
                f"{self.path}: cannot be written ({exc.strerror}); {advice(exc.errno)}"
            ) from exc
        self._waiting = b""

    def _open_board(self, iteration: int) -> None:
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(
                str(self.path.parent / "tb"), purge_step=iteration + 1 if iteration else None
            )

    def _to_board(self, do: Callable[[], None]) -> None:
        """The numbers are in metrics.jsonl too, so if TensorBoard cannot write, the run continues without it."""
        try:
            do()
        except OSError as exc:
            say(
                f"{self.path.parent / 'tb'}: cannot be written ({exc.strerror}); the run continues without TensorBoard"
            )
            self._board = None
