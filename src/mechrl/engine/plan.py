"""What has to be computed for a set of circuits, and what need not be.

Every circuit is a list of kept edges. The plan turns them into *jobs* (a receiver's copy of the residual stream, in some circuit)
and *rows* (a node's output, in some circuit), stage by stage: attention of layer 0, MLP of layer 0, …, logits. It leaves out,
without changing any output:

- dead edges, and receivers with no kept edge (they are their corrupted selves);
- repetition: two jobs that sum the same rows are one job, two heads with the same q, k and v are one row. Rows get their number
  from what they are computed from (value numbering, as in a compiler), so circuits that agree below some layer share everything
  below it, and identical circuits share everything;
- positions: a row that is read, directly or through others, only at the prediction position is computed only there. A row is
  needed at all positions if a k or v input reads it, or a q or MLP input of a row that itself is needed at all positions.

Pure index arithmetic on numpy arrays; no model, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mechrl.graph import Graph

_CORRUPTED = -1  # "this input is its corrupted self"


@dataclass(frozen=True)
class Pool:
    """Jobs of one stage that are computed at the same positions, sorted by receiver. Job j sums edges[start[j]:start[j + 1]]."""

    receiver: np.ndarray  # [J] receiver's place within its stage
    owner: np.ndarray  # [J] a circuit that wants it; jobs of one owner share many rows
    start: np.ndarray  # [J + 1]
    slot: np.ndarray  # [n] where each summed row is stored ...
    slot_is_last: np.ndarray  # [n] ... and whether in the store of prediction positions
    edge: np.ndarray  # [n] which of the edges handed to `make_plan` it is

    def __len__(self) -> int:
        return len(self.receiver)


@dataclass(frozen=True)
class Heads:
    """Head outputs to compute, sorted by head; q, k, v are job numbers, or -1 for the corrupted input."""

    head: np.ndarray
    q: np.ndarray  # in the full pool; for heads needed at the prediction position only, last-pool jobs follow the full ones
    k: np.ndarray  # counted from the pool's first k job
    v: np.ndarray  # counted from the pool's first v job

    def __len__(self) -> int:
        return len(self.head)


@dataclass(frozen=True)
class Stage:
    kind: str  # 'attention', 'mlp' or 'logits'
    layer: int
    full: Pool  # computed at all positions
    last: Pool  # computed at the prediction position only
    heads_full: Heads
    heads_last: Heads
    first_full_slot: int  # where this stage's outputs go
    first_last_slot: int


@dataclass(frozen=True)
class Plan:
    stages: list[Stage]
    n_circuits: int
    n_full_slots: int  # slot 0 is the input node
    n_last_slots: int
    output: np.ndarray  # [C] job of the logits stage, -1 for a circuit that is its corrupted self

    @property
    def n_outputs(self) -> int:
        return len(self.stages[-1].last) if self.stages else 0


@dataclass
class _Numbered:
    """A stage after the forward sweep: unique jobs with the edges of their first occurrence, unique rows."""

    stage: int
    receiver: np.ndarray
    owner: np.ndarray
    begin: np.ndarray  # [J] edges of job j: begin[j]:end[j] of the sorted edge list
    end: np.ndarray
    row: np.ndarray  # [begin..] row number of every edge of the stage, offset by `edge_offset`
    edge_offset: int
    first_row: int
    heads: np.ndarray | None = None  # [n_rows, 4] head, q, k, v job
    full: np.ndarray | None = None  # [J] set by the backward sweep


def _hash(x: np.ndarray) -> np.ndarray:
    """splitmix64: a 64-bit hash whose sums identify multisets (a false match has probability ~ jobs² / 2⁶⁴)."""
    z = x.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def make_plan(graph: Graph, circuit: np.ndarray, edge: np.ndarray, n_circuits: int, share: bool = True) -> Plan:
    """Plans the run of `n_circuits` circuits whose kept edges are the pairs (circuit[i], edge[i]), sorted by circuit, then edge.

    With `share=False` nothing is shared between circuits: needed when edges carry weights, or gradients are asked for.
    """
    order = np.argsort(graph.edge_stage[edge], kind="stable")
    order = order[graph.prune_edges(circuit[order], edge[order], n_circuits)]
    circuit, edge = circuit[order], edge[order]
    source = graph.edge_source[edge]
    n_stages = 2 * graph.n_layers + 1
    bounds = np.searchsorted(graph.edge_stage[edge], np.arange(n_stages + 1))
    used = np.zeros((n_circuits, graph.n_sources), dtype=bool)
    used[circuit, source] = True

    numbered, n_rows, output = _number(graph, circuit, source, graph.edge_receiver[edge], bounds, used, share)
    full = _needed_at_all_positions(graph, numbered, n_rows)
    return _lay_out(graph, numbered, full, order, output, n_circuits)


def _number(
    graph: Graph,
    circuit: np.ndarray,
    source: np.ndarray,
    receiver: np.ndarray,
    bounds: np.ndarray,
    used: np.ndarray,
    share: bool,
) -> tuple[list[_Numbered], int, np.ndarray]:
    """Forward sweep: numbers jobs by the rows they sum and rows by the jobs they read."""
    n_circuits, per_kv = len(used), graph.n_heads // graph.n_kv_heads
    row_of = np.zeros((n_circuits, graph.n_sources), dtype=np.int64)  # the input is row 0 everywhere
    output = np.full(n_circuits, _CORRUPTED)
    n_rows, numbered = 1, []
    for stage in range(2 * graph.n_layers + 1):
        a, b = int(bounds[stage]), int(bounds[stage + 1])
        if a == b:
            continue
        layer, is_mlp = divmod(stage, 2)
        n_receivers = 1 if is_mlp or layer == graph.n_layers else graph.receivers_per_layer - 1
        c = circuit[a:b]
        place = np.zeros(b - a, dtype=np.int64) if n_receivers == 1 else receiver[a:b] - layer * graph.receivers_per_layer
        row = row_of[c, source[a:b]]

        # one (circuit, receiver) after the other: edges are sorted that way
        key = c * n_receivers + place
        begin = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        key_circuit, key_place = np.divmod(key[begin], n_receivers)
        identity = np.add.reduceat(_hash(row), begin) ^ _hash(key_place + (1 << 40))
        if not share:
            identity ^= _hash(key_circuit + (1 << 41))
        _, first, inverse = np.unique(identity, return_index=True, return_inverse=True)
        by_receiver = np.argsort(key_place[first], kind="stable")
        first = first[by_receiver]
        job = np.argsort(by_receiver)[inverse]
        end = np.append(begin[1:], b - a)
        done = _Numbered(stage, key_place[first], key_circuit[first], begin[first], end[first], row, a, n_rows)
        numbered.append(done)

        if layer == graph.n_layers:
            output[key_circuit] = job
        elif is_mlp:
            row_of[key_circuit, graph.mlp(layer)] = n_rows + job
            n_rows += len(first)
        else:
            job_of = np.full((n_circuits, n_receivers), _CORRUPTED)
            job_of[key_circuit, key_place] = job
            H, G = graph.n_heads, graph.n_kv_heads
            q = job_of[:, :H]
            k = np.repeat(job_of[:, H : H + G], per_kv, axis=1)
            v = np.repeat(job_of[:, H + G :], per_kv, axis=1)
            live = used[:, graph.head(layer, 0) : graph.mlp(layer)] & ((q >= 0) | (k >= 0) | (v >= 0))
            of_circuit, head = np.nonzero(live)
            J = len(first) + 1
            code = ((head * J + q[live] + 1) * J + k[live] + 1) * J + v[live] + 1
            unique, inverse = np.unique(code, return_inverse=True)  # sorted by head, its most significant digit
            row_of[of_circuit, graph.head(layer, 0) + head] = n_rows + inverse
            n_rows += len(unique)
            rest, v_job = np.divmod(unique, J)
            rest, k_job = np.divmod(rest, J)
            done.heads = np.stack([*np.divmod(rest, J), k_job, v_job], axis=1) - np.array([0, 1, 1, 1])
    return numbered, n_rows, output


def _needed_at_all_positions(graph: Graph, numbered: list[_Numbered], n_rows: int) -> np.ndarray:
    """Backward sweep: [n_rows] bool. Also sets `full` of every stage's jobs."""
    full = np.zeros(n_rows, dtype=bool)
    full[0] = True  # the input is at hand at all positions
    for s in reversed(numbered):
        if s.stage == 2 * graph.n_layers:  # the logits are read at the prediction position
            s.full = np.zeros(len(s.receiver), dtype=bool)
            continue
        if s.heads is None:
            s.full = full[s.first_row : s.first_row + len(s.receiver)]
        else:
            s.full = s.receiver >= graph.n_heads  # k and v inputs
            q = s.heads[full[s.first_row : s.first_row + len(s.heads)], 1]
            s.full[q[q >= 0]] = True
        edges, _ = _segments(s.begin[s.full], s.end[s.full])
        full[s.row[edges]] = True
    return full


def _lay_out(
    graph: Graph, numbered: list[_Numbered], full: np.ndarray, order: np.ndarray, output: np.ndarray, n_circuits: int
) -> Plan:
    """Gives rows their slots, splits each stage into its two pools."""
    slot = np.where(full, np.cumsum(full) - 1, np.cumsum(~full) - 1)
    n_full, n_last = int(full.sum()), int((~full).sum())
    stages = []
    for s in numbered:
        layer, is_mlp = divmod(s.stage, 2)
        assert s.full is not None
        pools = []
        for chosen in (s.full, ~s.full):
            edges, start = _segments(s.begin[chosen], s.end[chosen])
            rows = s.row[edges]
            edge = order[edges + s.edge_offset]
            pools.append(Pool(s.receiver[chosen], s.owner[chosen], start, slot[rows], ~full[rows], edge))
        heads = [Heads(*np.zeros((4, 0), dtype=np.int64))] * 2
        n_out = 0 if layer == graph.n_layers else len(s.receiver)
        if s.heads is not None:
            n_out = len(s.heads)
            heads = _split_heads(graph, s, full[s.first_row : s.first_row + n_out])
        rows_out = full[s.first_row : s.first_row + n_out]
        first_full, first_last = int(full[: s.first_row].sum()), int((~full[: s.first_row]).sum())
        assert int(rows_out.sum()) == (len(pools[0]) if is_mlp else len(heads[0]))
        kind = "logits" if layer == graph.n_layers else ("mlp" if is_mlp else "attention")
        stages.append(Stage(kind, layer, pools[0], pools[1], heads[0], heads[1], first_full, first_last))
    return Plan(stages, n_circuits, n_full, n_last, output)


def _split_heads(graph: Graph, s: _Numbered, row_full: np.ndarray) -> list[Heads]:
    """Head rows needed at all positions, and the others; job numbers become places in the pools."""
    assert s.heads is not None and s.full is not None
    place = np.where(s.full, np.cumsum(s.full) - 1, np.cumsum(~s.full) - 1)
    n_q = int((s.full & (s.receiver < graph.n_heads)).sum())
    n_k = int((s.full & (s.receiver < graph.n_heads + graph.n_kv_heads)).sum()) - n_q
    place[~s.full] += n_q  # q jobs of the last pool are numbered after those of the full pool
    result = []
    for chosen in (row_full, ~row_full):
        head, q, k, v = s.heads[chosen].T
        result.append(
            Heads(
                head,
                np.where(q >= 0, place[q], _CORRUPTED),
                np.where(k >= 0, place[k] - n_q, _CORRUPTED),
                np.where(v >= 0, place[v] - n_q - n_k, _CORRUPTED),
            )
        )
    return result


def _segments(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices of several ranges one after the other, and where each begins in the result (with the total at the end)."""
    length = end - begin
    start = np.concatenate([[0], np.cumsum(length)])
    return np.repeat(begin - start[:-1], length) + np.arange(start[-1]), start
