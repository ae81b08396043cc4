"""Decides what has to be computed for a set of circuits.

A circuit is a list of kept edges. The plan turns circuits into *jobs* (a receiver's copy of the residual stream, in some circuit) and
*rows* (a node's output, in some circuit), stage by stage: attention of layer 0, MLP of layer 0, …, logits. Without changing any output
it skips

- dead edges, and receivers without kept edges, which stay corrupted;
- repetition: jobs that sum the same rows are one job; heads with the same q, k and v are one row. Rows are numbered by what they are
  computed from (value numbering, as in compilers), so circuits that agree below some layer share everything below it;
- positions: a row that is read only at the prediction position, directly or through others, is computed only there. A row is needed at
  all positions if a k or v input reads it, or if a row that is needed at all positions reads it through its q or MLP input.

Index arithmetic on numpy arrays only, without model or torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mechrl.graph import EdgeSet, Graph, LiveEdges, StageEdges

_CORRUPTED = -1  # stands for the corrupted run's job or row


@dataclass(frozen=True)
class Pool:
    """The jobs of a stage that are computed at the same positions, sorted by receiver. Job j sums edges[start[j]:start[j + 1]]."""

    receiver: np.ndarray  # [J] its index within the stage
    owner: np.ndarray  # [J] a circuit that needs it; jobs of one owner share many rows
    group: np.ndarray  # [J] the batch of pairs it runs on
    start: np.ndarray  # [J + 1]
    slot: np.ndarray  # [n] where each summed row is stored
    slot_is_last: np.ndarray  # [n] whether the slot is in the store of prediction positions
    edge: np.ndarray  # [n] its index in the flattened masks

    def __len__(self) -> int:
        return len(self.receiver)


@dataclass(frozen=True)
class Heads:
    """Head outputs to compute, sorted by head; q, k, v are job numbers, or -1 for the corrupted input."""

    head: np.ndarray
    q: np.ndarray  # in the full pool; for heads needed at the prediction position only, last-pool jobs follow the full ones
    k: np.ndarray  # counted from the pool's first k job
    v: np.ndarray  # counted from the pool's first v job
    group: np.ndarray  # the batch of pairs it runs on

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
    # [full slots] each row's batch of pairs; the first slots are the groups' input nodes
    full_group: np.ndarray
    last_group: np.ndarray  # [last slots]
    output: np.ndarray  # [C] job of the logits stage; -1: the circuit is the corrupted run
    row_of: np.ndarray  # [C, S] row of every source; -1: the source stays corrupted

    @property
    def n_full_slots(self) -> int:
        return len(self.full_group)

    @property
    def n_last_slots(self) -> int:
        return len(self.last_group)

    @property
    def n_outputs(self) -> int:
        return len(self.stages[-1].last) if self.stages else 0


@dataclass
class _Numbered:
    """A stage after the forward sweep: unique jobs, with the edges of their first occurrence, and unique rows."""

    stage: StageEdges
    receiver: np.ndarray  # [J]
    owner: np.ndarray  # [J]
    begin: np.ndarray  # [J] edges of job j: begin[j]:end[j] of the stage's live edges
    end: np.ndarray
    row: np.ndarray  # [live edges] the row that each carries
    edge: np.ndarray  # [live edges] its index in the flattened masks
    first_row: int
    group: np.ndarray  # [J]
    heads: np.ndarray | None = None  # [rows, 5] head, q, k, v job, group
    full: np.ndarray | None = None  # [J] set by the backward sweep


def _hash(x: np.ndarray) -> np.ndarray:
    """splitmix64: a 64-bit hash whose sums identify multisets (a false match has probability ~ jobs² / 2⁶⁴)."""
    z = x.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def make_plan(
    edge_set: EdgeSet,
    masks: np.ndarray,
    share: bool = True,
    given: np.ndarray | None = None,
    everywhere: bool = False,
    group: np.ndarray | None = None,
) -> Plan:
    """Plans a run of the circuits `masks` [C, n] bool over the edges of `edge_set`.

    share: False keeps circuits separate, as edge weights and gradients require.
    given: [m] the rows of the first m sources are already in slots 0 to m − 1; False for a source that stays corrupted.
    everywhere: compute all rows at all positions, even where they are not read.
    group: [C] the batch of pairs each circuit runs on. Every live row descends from its group's input row, so groups never share rows or
        jobs.
    """
    given = np.ones(1, dtype=bool) if given is None else given  # at least the input
    live, read = edge_set.live(masks, given, keep_unread=everywhere)
    of_circuit = np.zeros(len(masks), dtype=np.int64) if group is None else group
    row_of = np.full((len(masks), edge_set.graph.n_sources), _CORRUPTED)
    row_of[:, : len(given)] = np.arange(len(given))
    row_of[:, 0] = of_circuit
    first = len(given) if group is None else int(group.max(initial=0)) + 1
    numbered, row_group, output = _number(edge_set, live, read, share, row_of, of_circuit, first)
    full = _needed_at_all_positions(
        edge_set.graph, numbered, len(row_group), len(row_group) if everywhere else first
    )
    return _lay_out(edge_set.graph, numbered, full, row_group, output, row_of)


def _number(
    edge_set: EdgeSet,
    live: list[LiveEdges],
    read: np.ndarray,
    share: bool,
    row_of: np.ndarray,
    group: np.ndarray,
    n_rows: int,
) -> tuple[list[_Numbered], np.ndarray, np.ndarray]:
    """Forward sweep: numbers jobs by the rows they sum, and rows by the jobs they read. Fills `row_of`; numbers begin at `n_rows`."""
    graph, n_circuits, n_columns = edge_set.graph, len(row_of), len(edge_set.edges)
    output = np.full(n_circuits, _CORRUPTED)
    numbered = []
    row_group = [np.arange(n_rows) if group.any() else np.zeros(n_rows, dtype=np.int64)]
    for edges in live:
        stage, c, n_receivers = edges.stage, edges.circuit, edges.stage.n_receivers
        row = row_of[c, edges.source]
        edge = c * n_columns + edges.column

        # each run of equal (circuit, receiver) is a job: edges are sorted that way
        key = c * n_receivers + edges.place
        begin = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        key_circuit, key_place = np.divmod(key[begin], n_receivers)
        identity = np.add.reduceat(_hash(row), begin) ^ _hash(key_place + (1 << 40))
        if not share:
            identity ^= _hash(key_circuit + (1 << 41))
        _, first, inverse = np.unique(identity, return_index=True, return_inverse=True)
        by_receiver = np.argsort(key_place[first], kind="stable")
        first = first[by_receiver]
        job = np.argsort(by_receiver)[inverse]
        end = np.append(begin[1:], len(c))
        owner = key_circuit[first]
        done = _Numbered(
            stage, key_place[first], owner, begin[first], end[first], row, edge, n_rows, group[owner]
        )
        numbered.append(done)

        if stage.kind == "logits":
            output[key_circuit] = job
        elif stage.kind == "mlp":
            row_of[key_circuit, graph.mlp(stage.layer)] = n_rows + job
            row_group.append(done.group)
            n_rows += len(first)
        else:
            job_of = np.full((n_circuits, n_receivers), _CORRUPTED)
            job_of[key_circuit, key_place] = job
            first_head = graph.head(stage.layer, 0)
            of_heads = read[:, first_head : graph.mlp(stage.layer)]
            of_circuit, head, number, done.heads = _number_heads(graph, job_of, of_heads, len(first), group)
            row_group.append(done.heads[:, 4])
            row_of[of_circuit, first_head + head] = n_rows + number
            n_rows += len(done.heads)
    return numbered, np.concatenate(row_group), output


def _number_heads(
    graph: Graph, job_of: np.ndarray, read: np.ndarray, n_jobs: int, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Heads with the same q, k and v jobs are one row.

    Returns circuit, head and row of every head that is `read`, and what each row is computed from [rows, 5] (see `_Numbered.heads`).
    """
    H, G = graph.n_heads, graph.n_kv_heads
    q = job_of[:, :H]
    k = np.repeat(job_of[:, H : H + G], H // G, axis=1)
    v = np.repeat(job_of[:, H + G :], H // G, axis=1)
    wanted = read & ((q >= 0) | (k >= 0) | (v >= 0))
    of_circuit, head = np.nonzero(wanted)
    J = n_jobs + 1
    code = ((head * J + q[wanted] + 1) * J + k[wanted] + 1) * J + v[wanted] + 1
    # sorted by head, the first digit
    unique, at, number = np.unique(code, return_index=True, return_inverse=True)
    rest, v_job = np.divmod(unique, J)
    rest, k_job = np.divmod(rest, J)
    of_rows = np.stack([*np.divmod(rest, J), k_job, v_job, group[of_circuit[at]]], axis=1)
    return of_circuit, head, number, of_rows - np.array([0, 1, 1, 1, 0])


def _needed_at_all_positions(graph: Graph, numbered: list[_Numbered], n_rows: int, n_full: int) -> np.ndarray:
    """Backward sweep: [n_rows] bool. Also sets `full` for every stage's jobs. The first `n_full` rows are full in any case."""
    full = np.zeros(n_rows, dtype=bool)
    full[:n_full] = True
    for s in reversed(numbered):
        if s.stage.kind == "logits":  # the logits are read at the prediction position
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
    graph: Graph,
    numbered: list[_Numbered],
    full: np.ndarray,
    row_group: np.ndarray,
    output: np.ndarray,
    row_of: np.ndarray,
) -> Plan:
    """Assigns slots to rows, and splits each stage into its two pools."""
    slot = np.where(full, np.cumsum(full) - 1, np.cumsum(~full) - 1)
    n_before = np.concatenate([[0], np.cumsum(full)])  # rows at all positions before a row
    stages = []
    for s in numbered:
        assert s.full is not None
        pools = []
        for chosen in (s.full, ~s.full):
            edges, start = _segments(s.begin[chosen], s.end[chosen])
            rows = s.row[edges]
            of_jobs = s.receiver[chosen], s.owner[chosen], s.group[chosen]
            pools.append(Pool(*of_jobs, start, slot[rows], ~full[rows], s.edge[edges]))
        heads = [Heads(*np.zeros((5, 0), dtype=np.int64))] * 2
        if s.heads is not None:
            heads = _split_heads(graph, s, full[s.first_row : s.first_row + len(s.heads)])
        first_full = int(n_before[s.first_row])
        at_all, at_last = pools
        heads_all, heads_last = heads
        first_last = s.first_row - first_full
        stages.append(
            Stage(s.stage.kind, s.stage.layer, at_all, at_last, heads_all, heads_last, first_full, first_last)
        )
    return Plan(stages, len(output), row_group[full], row_group[~full], output, row_of)


def _split_heads(graph: Graph, s: _Numbered, row_full: np.ndarray) -> list[Heads]:
    """Head rows needed at all positions, and the others, with job numbers converted to indices in the pools."""
    assert s.heads is not None and s.full is not None
    place = np.where(s.full, np.cumsum(s.full) - 1, np.cumsum(~s.full) - 1)
    n_q = int((s.full & (s.receiver < graph.n_heads)).sum())
    n_k = int((s.full & (s.receiver < graph.n_heads + graph.n_kv_heads)).sum()) - n_q
    place[~s.full] += n_q  # q jobs of the last pool are numbered after those of the full pool
    result = []
    for chosen in (row_full, ~row_full):
        head, q, k, v, group = s.heads[chosen].T
        result.append(
            Heads(
                head,
                np.where(q >= 0, place[q], _CORRUPTED),
                np.where(k >= 0, place[k] - n_q, _CORRUPTED),
                np.where(v >= 0, place[v] - n_q - n_k, _CORRUPTED),
                group,
            )
        )
    return result


def _segments(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices of several ranges, concatenated, and the offset of each range in the result; the last offset is the total."""
    length = end - begin
    start = np.concatenate([[0], np.cumsum(length)])
    return np.repeat(begin - start[:-1], length) + np.arange(start[-1]), start
