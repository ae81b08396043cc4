"""How many circuits run at once: memory needed, memory available, and smaller chunks when an estimate was wrong."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch

from mechrl.errors import OutOfMemory
from mechrl.models.base import Spec

CIRCUITS_PER_CHUNK = 512  # enough to fill a GPU, few enough to plan the next chunk while this one runs
_ON_A_CPU = 2 * 2**30


def budget(device: torch.device, given: int | None = None) -> float:
    """Bytes that a chunk of circuits may use."""
    if given is not None:
        return given
    if device.type != "cuda":
        return _ON_A_CPU
    free, _ = torch.cuda.mem_get_info(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    return 0.4 * max(0.0, min(free + reserved - allocated, allowed_memory(device) - allocated))


def circuit_bytes(spec: Spec, kept: np.ndarray, n_tokens: int, itemsize: int, copies: int = 1) -> np.ndarray:
    """[C] bytes for the rows and streams of circuits with `kept` edges each: an upper bound, as if nothing were shared."""
    graph = spec.graph
    rows = np.minimum(kept + 1, graph.n_sources)
    hidden = 4 * spec.d_mlp / spec.d_model  # of an MLP, as a multiple of a stream
    streams = 2 * graph.receivers_per_layer + hidden
    total: np.ndarray = (rows * copies + streams) * (n_tokens * spec.d_model * itemsize)
    return total


def mlp_bytes(spec: Spec, n_tokens: int, itemsize: int) -> int:
    """Bytes of what a circuit's MLPs compute in the forward pass, if kept for the backward pass."""
    return spec.n_layers * n_tokens * (3 * spec.d_model + 4 * spec.d_mlp) * itemsize


def share_memory(device: torch.device, processes: int) -> None:
    """Limits this process to its share of a GPU used by several. Engines use all they may (`budget`)."""
    # 0.95: CUDA itself takes the rest
    torch.cuda.set_per_process_memory_fraction(0.95 / processes, device.index)


def let_go() -> None:
    """Frees GPU memory that is no longer needed: engines are large, and other processes may share the device."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def allowed_memory(device: torch.device) -> float:
    """Bytes of a GPU that this process may use: all, unless several processes share it."""
    _, total = torch.cuda.mem_get_info(device)
    return total * torch.cuda.get_per_process_memory_fraction(device.index)


def consecutive(
    need: np.ndarray, budget: float, most: int, alone: np.ndarray | None = None
) -> Iterator[slice]:
    """Runs of at most `most` circuits whose `need` [C] fits the budget together. A circuit marked `alone` gets its own run."""
    first, total = 0, 0.0
    for i, size in enumerate(need):
        apart = alone is not None and (alone[i] or alone[i - 1])
        if i > first and (total + size > budget or i - first == most or apart):
            yield slice(first, i)
            first, total = i, 0.0
        total += size
    if first < len(need):
        yield slice(first, len(need))


Result = TypeVar("Result")


def fitting(chunks: Iterable[slice], run: Callable[[slice], Result]) -> Iterator[tuple[slice, Result]]:
    """Yields chunks of circuits and their results. A chunk that turns out too large for the memory is halved."""
    for chunk in chunks:
        todo = [chunk]
        while todo:
            some = todo.pop()
            try:
                result = run(some)
            except torch.cuda.OutOfMemoryError:
                if some.stop - some.start == 1:
                    raise OutOfMemory(
                        "one circuit does not fit into the device's memory: use fewer pairs"
                    ) from None
                middle = (some.start + some.stop) // 2
                todo += [slice(middle, some.stop), slice(some.start, middle)]
            else:
                yield some, result
                continue
            torch.cuda.empty_cache()  # not in the handler: there the exception still holds the tensors
