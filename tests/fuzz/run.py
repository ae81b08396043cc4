"""The fuzzer: a reader, damaged variants of its files, and the outcome of each. `python -m tests.fuzz.run SECONDS` runs for that long."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

from mechrl.errors import MechRLError
from tests.fuzz.damage import damaged
from tests.fuzz.readers import READERS, Reader

SLOW = 2.0  # CPU seconds for a file of a few kilobytes


class Fuzz:
    """One reader, its valid files in memory, and a folder in which they are damaged one at a time."""

    def __init__(self, reader: Reader, folder: Path, seed: int = 0) -> None:
        self.reader, self.folder, self.rng = reader, folder, Random(f"{reader.name} {seed}")
        reader.make(folder)
        self.valid = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        self.chosen = [path for path in self.valid if not reader.damage or path.name in reader.damage]
        assert self.chosen
        reader.read(folder)  # undamaged, it is read
        self.counts: Counter[str] = Counter()
        self.found: list[str] = []  # files that were neither read nor refused in one line

    def one(self) -> None:
        path = self.rng.choice(self.chosen)
        kind = "jsonl" if path.suffix == ".jsonl" else path.suffix.removeprefix(".")
        content = damaged(self.valid[path], kind, self.rng)
        path.write_bytes(content)
        began = time.thread_time()
        try:
            self.reader.read(self.folder)
            self.counts["read"] += 1
        except MechRLError as exc:
            self.counts["refused"] += 1
            if "\n" in str(exc):
                self._found(path, content, "more than one line")
        except BaseException as exc:
            if isinstance(exc, KeyboardInterrupt):
                raise
            last = traceback.extract_tb(exc.__traceback__)[-1]
            gist = f"{type(exc).__name__}: {str(exc)[:80]} ({Path(last.filename).name}:{last.lineno})"
            self._found(path, content, f"{gist}\n{''.join(traceback.format_exception(exc)[-4:])}")
        finally:
            self.counts["slowest, ms"] = max(
                self.counts["slowest, ms"], round(1000 * (time.thread_time() - began))
            )
            path.write_bytes(self.valid[path])
        if time.thread_time() - began > SLOW:
            self._found(path, content, f"{time.thread_time() - began:.1f} s")

    def _found(self, path: Path, content: bytes, what: str) -> None:
        self.counts["FOUND"] += 1
        self.found.append(f"{self.reader.name}, {path.name}: {what}\n{content[:300]!r}")
        if keep := os.environ.get("MECHRL_FUZZ_KEEP"):  # a folder in which failing files are kept
            Path(
                keep, f"{self.reader.name}-{self.counts['FOUND']}-{path.name}".replace(" ", "-")
            ).write_bytes(content)


def main(seconds: float) -> int:
    """All readers in turn, a hundred variants each time; prints counts at the end or on Ctrl-C."""
    began, total = time.monotonic(), {reader.name: Counter[str]() for reader in READERS}
    printed: set[str] = set()
    with suppress(KeyboardInterrupt):
        for seed in count(1):
            for reader in READERS:
                if time.monotonic() - began > seconds:
                    raise KeyboardInterrupt
                _hundred(reader, seed, total[reader.name], printed)
    minutes, processor = (time.monotonic() - began) / 60, time.process_time() / 60
    print(f"{minutes:.0f} minutes, {processor:.1f} of them of a core\n")
    print(
        "| reader | variants | refused | read | neither | slowest, ms |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name, n in total.items():
        variants = n["refused"] + n["read"] + n["FOUND"]
        print(
            f"| {name} | {variants:,} | {n['refused']:,} | {n['read']:,} | {n['FOUND']} | {n['slowest, ms']:,} |"
        )
    return any(n["FOUND"] for n in total.values())


def _hundred(reader: Reader, seed: int, total: Counter[str], printed: set[str]) -> None:
    """Runs variants of one reader's files; prints failures at once, one of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(reader, Path(folder), seed)
        try:
            for _ in range(100):
                fuzz.one()
        finally:
            for key, n in fuzz.counts.items():
                total[key] = max(total[key], n) if "slowest" in key else total[key] + n
    for what in fuzz.found:
        if (gist := what.splitlines()[0]) not in printed:
            printed.add(gist)
            print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
