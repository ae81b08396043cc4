"""What benchmarks of many cells share: a file with a row per cell, and processes that divide the cells among themselves.

python benchmarks/rows.py benchmarks/search/rows.jsonl      compresses rows to rows.jsonl.xz, which is read as rows.jsonl is
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from mechrl.engine.memory import share_memory
from mechrl.files import write_atomically

Row = dict[str, Any]
_SHARED_BY = "MECHRL_BENCHMARK_JOBS"  # in the environment of the processes that share the work


def packed(path: Path) -> Path:
    return path.with_name(f"{path.name}.xz")


def pack(path: Path) -> None:
    """Moves rows into the compressed file beside theirs."""
    lines = dict.fromkeys(json.dumps(row) for row in read(path))
    write_atomically(
        packed(path),
        lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9 | lzma.PRESET_EXTREME),
    )
    path.unlink(missing_ok=True)


def read(path: Path) -> list[Row]:
    """The rows of a file and of the compressed one beside it, if there are any; without a last line that a kill cut short."""
    text = lzma.decompress(packed(path).read_bytes()).decode() if packed(path).exists() else ""
    text += path.read_text() if path.exists() else ""
    rows = []
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append(path: Path, rows: Iterable[Row]) -> None:
    """Appends rows, and waits until they are on the disk."""
    with open(path, "a") as file:
        for row in rows:
            file.write(json.dumps(row, default=float) + "\n")
        file.flush()
        os.fsync(file.fileno())


def done_cells(reproduced: Path) -> Iterator[Row]:
    """The finished circuit cells of `mechrl reproduce`, from its folder or its archive."""
    import archive

    if (reproduced / archive.CELLS).exists():
        cells = [row.cell for row in archive.read(reproduced)]
    else:
        cells = [json.loads(path.read_text()) for path in sorted((reproduced / "cells").glob("*.json"))]
    yield from (known for known in cells if known["kind"] == "circuit" and known["status"] == "done")


def holds_on(arguments: Row) -> str:
    """The pairs that a reproduction's cell had to hold on. Its files call fresh pairs `test`."""
    return "fresh" if arguments["target"] == "test" else arguments["target"]


def judged(row: Row) -> float:
    """f on the pairs that decided: validation pairs if they did, else discovery pairs."""
    return row["f"] if row.get("f_validation") is None else row["f_validation"]


def bring_together(path: Path, resume: Path | None, key: Callable[[Row], Any]) -> dict[Any, Row]:
    """Merges the rows of `path` and of an earlier run into `path`."""
    rows = {key(row): row for file in (path, resume) if file is not None for row in read(file)}
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows.values()).encode())
    return rows


def share(jobs: int) -> None:
    """Runs this script several times at once. Each process takes cells that no other has taken."""
    with tempfile.TemporaryDirectory() as claims:
        command = [
            sys.executable,
            sys.argv[0],
            *(a for a in sys.argv[1:] if not a.startswith("--jobs")),
            "--claims",
            claims,
        ]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)),
            _SHARED_BY: str(jobs),
        }
        workers = [subprocess.Popen(command, env=environment) for _ in range(jobs)]
        for worker in workers:
            worker.wait()


def keep_to_share() -> None:
    """Limits a process that `share` started to its share of the GPU's memory."""
    if torch.cuda.is_available():
        share_memory(torch.device("cuda"), int(os.environ[_SHARED_BY]))


def claimed(folder: Path, cell: str) -> bool:
    """Claims the cell, unless another process has."""
    try:
        (folder / hashlib.sha256(cell.encode()).hexdigest()).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    for name in sys.argv[1:]:
        pack(Path(name))
