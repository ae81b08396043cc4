"""A behaviour: pairs of a clean and a corrupted prompt, right answers and foils, and a metric.

Pairs are split into three disjoint parts: `discovery`, `validation` and `test`. Every key of a pair (by default both of its prompts) hashes
to one part, and a pair belongs to a part only if all its keys do. A seed draws pairs within a part, so no seed and no number of pairs can
leak a pair from one part into another.

The prediction is made at the last token of a prompt. For every metric, higher means more of the behaviour.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from mechrl.errors import FileError, MechRLError
from mechrl.models.tokenizer import Tokenizer

Part = Literal["discovery", "validation", "test"]
Split = Literal["train", "held-out", "extra"]
Metric = Literal["logit-difference", "probability-difference", "kl"]

PARTS: tuple[Part, ...] = get_args(Part)
METRICS: tuple[Metric, ...] = get_args(Metric)

# The last two seeds stand for their parts; every other seed draws from the discovery part, unless `part` is given. A loop over seeds
# 0, 1, 2, … never reaches them, so it never draws test pairs.
DISCOVERY_SEED = 0
VALIDATION_SEED = 1_000_001
TEST_SEED = 1_000_002
_PART_OF_SEED: dict[int, Part] = {VALIDATION_SEED: "validation", TEST_SEED: "test"}

ENOUGH = 10  # pairs in a part; with fewer, f describes only these pairs

# After this many draws without a new pair, the template is exhausted.
_FRUITLESS = 3000


@dataclass(frozen=True)
class Known:
    """A component that was published for a behaviour, named as in the graph: `a9.h6` or `m8`."""

    component: str
    role: str
    source: str
    confidence: Literal["high", "medium", "low"]


def known(
    role: str, source: str, confidence: Literal["high", "medium", "low"], components: str
) -> tuple[Known, ...]:
    """`known(…, "9.6 10.0 m8")`: heads as layer.head, MLPs as m and the layer."""
    names = [c if c.startswith("m") else "a{}.h{}".format(*c.split(".")) for c in components.split()]
    return tuple(Known(name, role, source, confidence) for name in names)


@dataclass(frozen=True)
class Row:
    """One pair as text."""

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    foils: tuple[str, ...]
    keys: tuple[str, ...] = ()  # no key is in two parts; by default both prompts
    where: str = ""  # its file and line; empty if drawn from a template
    part: Part | None = None  # given by the file; None: chosen by the hash of the keys

    def belongs_to(self, part: Part) -> bool:
        if self.part is not None:
            return self.part == part
        return all(part_of(key) == part for key in self.keys or (self.clean, self.corrupt))


def part_of(key: str) -> Part:
    """The part that a key belongs to; the same on every machine."""
    return PARTS[int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % len(PARTS)]


@dataclass(frozen=True)
class Pairs:
    """Pairs as token ids, BOS included. `clean[i]` and `corrupt[i]` have the same length; different pairs may differ."""

    clean: tuple[tuple[int, ...], ...]
    corrupt: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]
    foils: tuple[tuple[int, ...], ...]
    texts: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.clean)

    def take(self, indices: Iterable[int]) -> Pairs:
        """Some of the pairs, in the order given."""
        indices = tuple(indices)
        columns = (self.clean, self.corrupt, self.answers, self.foils, self.texts)
        return Pairs(*(tuple(column[i] for i in indices) for column in columns))  # type: ignore[arg-type]


class Unbuildable(Exception):
    """The tokenizer lacks tokens that a template needs. `Behaviour.pairs` adds the behaviour's name."""


class Lexicon:
    """The words of a template as a tokenizer sees them. Unknown words are left out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.unk: int | None = tokenizer.backend.token_to_id("<unk>")
        self._ids: dict[str, int | None] = {}
        self._single: dict[tuple[str, ...], tuple[str, ...]] = {}

    def known(self, ids: Sequence[int]) -> bool:
        return self.unk is None or self.unk not in ids

    def strange(self, text: str) -> list[str]:
        """The words of `text` that the tokenizer does not know."""
        encoded = self.tokenizer.backend.encode(text, add_special_tokens=False)
        pieces = [
            text[a:b] for token, (a, b) in zip(encoded.ids, encoded.offsets, strict=True) if token == self.unk
        ]
        return list(dict.fromkeys(pieces))

    def id(self, text: str) -> int | None:
        """The id of `text` if it is exactly one token that the tokenizer knows."""
        if text not in self._ids:
            token = self.tokenizer.single(text)
            self._ids[text] = None if token == self.unk else token
        return self._ids[text]

    def continues(self, text: str, token: str) -> bool:
        """Whether the tokenizer would write `token` after `text`. If it splits FRB into F and RB, it never writes B after FR."""
        token_id, encode = self.id(token), self.tokenizer.encode
        return token_id is not None and encode(text + token) == [*encode(text), token_id]

    def single(self, words: tuple[str, ...], what: str, at_least: int = 2) -> tuple[str, ...]:
        """Those of `words` that are a single token after a space."""
        if words not in self._single:
            self._single[words] = tuple(word for word in words if self.id(f" {word}") is not None)
        found = self._single[words]
        if len(found) < at_least:
            raise Unbuildable(f"it has {len(found)} single-token {what}, {at_least} are needed")
        return found


Draw = Callable[[Lexicon, Random], Row]


@dataclass(frozen=True)
class Behaviour:
    """Something a language model does. `source` is a template that draws a random row, or the rows of a file."""

    name: str
    family: str
    split: Split
    metric: Metric
    description: str
    source: Draw | tuple[Row, ...]
    known: tuple[Known, ...] = ()
    known_model: str = "gpt2"  # the model in which `known` was found
    file: str = ""  # the file it was read from; empty if built in

    @classmethod
    def from_pairs(
        cls,
        name: str,
        rows: Sequence[Mapping[str, object]],
        metric: Metric = "logit-difference",
        description: str = "written by the user",
    ) -> Self:
        """A behaviour from rows with `clean`, `corrupt`, `answer` and `foil` (one text or several), and optionally `part`."""
        from mechrl.behaviours.custom import read_rows  # imported here because it needs the classes above

        source, metric = read_rows([(f"{name}, row {i}", row) for i, row in enumerate(rows, 1)], name, metric)
        return cls(name, "custom", "extra", metric, description, source)

    @property
    def asked_as(self) -> str:
        """Its name on a command line: the file's path, if it has one."""
        return self.file or self.name

    def rows(self) -> tuple[dict[str, object], ...]:
        """The rows as `from_pairs` reads them, parts included; none for a template."""
        if not isinstance(self.source, tuple):
            return ()

        def one(texts: tuple[str, ...]) -> object:
            return texts[0] if len(texts) == 1 else list(texts)

        return tuple(
            {
                "clean": r.clean,
                "corrupt": r.corrupt,
                "answer": one(r.answers),
                "foil": one(r.foils),
                "metric": self.metric,
                "part": r.part,
            }
            for r in self.source
        )

    @property
    def has_fresh(self) -> bool:
        """Whether f on fresh pairs can be asked for: at least ten validation and ten test pairs."""
        if not isinstance(self.source, tuple):
            return True
        return all(
            sum(row.belongs_to(part) for row in self.source) >= ENOUGH for part in ("validation", "test")
        )

    def problems(self, tokenizer: Tokenizer, n_ctx: int | None = None) -> list[str]:
        """The errors in a file's rows for this tokenizer, line by line."""
        lexicon = Lexicon(tokenizer)
        written = self.source if isinstance(self.source, tuple) else ()
        encoded = [(row.where, _encode(row, lexicon, n_ctx)) for row in written]
        return [f"{where}: {problem}" for where, problem in encoded if isinstance(problem, str)]

    def pairs(
        self,
        tokenizer: Tokenizer,
        n: int = 20,
        seed: int = DISCOVERY_SEED,
        part: Part | None = None,
        n_ctx: int | None = None,
    ) -> Pairs:
        """Up to `n` distinct pairs of a part; fewer only if the part has no more.

        The part is that of the seed (`TEST_SEED`, `VALIDATION_SEED`; any other: discovery), unless `part` is given. Clean prompts repeat
        only when there are no new ones. `n_ctx` is the model's context length.
        """
        if n < 1:
            raise MechRLError(f"behaviour {self.name!r}: the number of pairs must be at least 1, not {n}")
        part = part or _PART_OF_SEED.get(seed, "discovery")
        rng = Random(f"{self.name} {seed}")
        lexicon = Lexicon(tokenizer)
        try:
            pairs = (self._written if isinstance(self.source, tuple) else self._drawn)(
                lexicon, rng, part, n_ctx, n
            )
        except Unbuildable as reason:
            raise MechRLError(
                f"behaviour {self.name!r} cannot be built for this tokenizer: {reason}"
            ) from None
        return Pairs(*zip(*pairs, strict=True))

    def _drawn(self, lexicon: Lexicon, rng: Random, part: Part, n_ctx: int | None, n: int) -> list[_Encoded]:
        assert not isinstance(self.source, tuple)
        pairs: dict[tuple[str, str], _Encoded] = {}
        problems: Counter[str] = Counter()
        for repeat_clean in (False, True):
            clean_seen = {clean for clean, _ in pairs}
            fruitless = 0
            while len(pairs) < n and fruitless < _FRUITLESS:
                fruitless += 1
                row = self.source(lexicon, rng)
                texts = (row.clean, row.corrupt)
                if (
                    texts in pairs
                    or (row.clean in clean_seen and not repeat_clean)
                    or not row.belongs_to(part)
                ):
                    continue
                encoded = _encode(row, lexicon, n_ctx)
                if isinstance(encoded, str):
                    problems[encoded] += 1
                    continue
                pairs[texts] = encoded
                clean_seen.add(row.clean)
                fruitless = 0
        if not pairs:
            raise Unbuildable(
                problems.most_common(1)[0][0] if problems else f"the template has no {part} pairs"
            )
        return list(pairs.values())

    def _written(
        self, lexicon: Lexicon, rng: Random, part: Part, n_ctx: int | None, n: int
    ) -> list[_Encoded]:
        assert isinstance(self.source, tuple)
        mine: list[_Encoded] = []
        for row in self.source:  # check all rows, whatever the part: one bad row makes the file invalid
            encoded = _encode(row, lexicon, n_ctx)
            if isinstance(encoded, str):
                more = len(self.problems(lexicon.tokenizer, n_ctx)) - 1
                listed = f"`mechrl check {self.file}` lists them" if self.file else "`problems` lists them"
                also = f" (and {more} more rows are wrong: {listed})" if more else ""
                raise FileError(f"{row.where}: {encoded}{also}")
            if row.belongs_to(part):
                mine.append(encoded)
        if not mine:
            raise FileError(
                f"{f'{self.file}: ' if self.file else ''}behaviour {self.name!r} has no {part} pairs: "
                "give it at least four rows with different clean prompts, or a 'part' field"
            )
        return rng.sample(mine, min(n, len(mine)))


_Ids = tuple[int, ...]
_Encoded = tuple[_Ids, _Ids, _Ids, _Ids, tuple[str, str]]


def _encode(row: Row, lexicon: Lexicon, n_ctx: int | None) -> _Encoded | str:
    """One row as columns of `Pairs`, or what is wrong with it."""
    tokenizer = lexicon.tokenizer
    clean, corrupt = tokenizer.prompt(row.clean), tokenizer.prompt(row.corrupt)
    # checked first: to the tokenizer, unknown words are all the same
    if not (lexicon.known(clean) and lexicon.known(corrupt)):
        words = ", ".join(repr(word) for word in lexicon.strange(f"{row.clean} {row.corrupt}")[:3])
        return f"the prompt has words that the tokenizer does not know: {words}"
    if clean == corrupt:
        return "the clean and the corrupted prompt are identical"
    if len(clean) != len(corrupt):
        return f"the clean prompt has {len(clean)} tokens, the corrupted one {len(corrupt)}; they must be equally long"
    if n_ctx is not None and len(clean) > n_ctx:
        return f"the prompt has {len(clean)} tokens, the model's context is {n_ctx}"
    ids: list[_Ids] = []
    for kind, texts in (("answer", row.answers), ("foil", row.foils)):
        for text in texts:
            if not lexicon.known(tokenizer.encode(text)):
                return f"the tokenizer does not know the {kind} {text!r}"
            if lexicon.id(text) is None:
                hint = "; with a space before it, it is one" if lexicon.id(f" {text}") is not None else ""
                return f"the {kind} {text!r} is not a single token{hint}"
        ids.append(tuple(dict.fromkeys(tokenizer.encode(text)[0] for text in texts)))
    answers, foils = ids
    if set(answers) & set(foils):
        return "an answer is also a foil"
    return tuple(clean), tuple(corrupt), answers, foils, (row.clean, row.corrupt)


# ---- metrics --------------------------------------------------------------------------------------------------------


def metric_value(metric: Metric, logits: Tensor, pairs: Pairs, clean_logits: Tensor | None = None) -> Tensor:
    """How much of the behaviour the model shows: logits [..., B, V] at the last position to a value per pair [..., B].

    logit-difference        mean logit of the answers − mean logit of the foils
    probability-difference  probability of all answers − probability of all foils
    kl                      −KL(clean ‖ now), zero for the clean run itself; needs `clean_logits` [B, V]
    """
    if metric == "kl":
        if clean_logits is None:
            raise ValueError("the metric 'kl' compares with the clean run: pass clean_logits")
        clean, now = clean_logits.log_softmax(-1), logits.log_softmax(-1)
        return -(clean.exp() * (clean - now)).sum(-1)
    values = logits if metric == "logit-difference" else logits.softmax(-1)
    answers, in_answers = _gather(values, pairs.answers)
    foils, in_foils = _gather(values, pairs.foils)
    right, wrong = (answers * in_answers).sum(-1), (foils * in_foils).sum(-1)
    if metric == "logit-difference":
        return right / in_answers.sum(-1) - wrong / in_foils.sum(-1)
    return right - wrong


def accuracy(logits: Tensor, pairs: Pairs, metric: Metric = "logit-difference") -> Tensor:
    """The fraction of pairs that are answered correctly, [..., B, V] to [...].

    Correct: the best answer beats every foil; for a probability difference, all answers together beat all foils.
    """
    if metric == "probability-difference":
        right = metric_value(metric, logits, pairs) > 0
    else:
        answers, in_answers = _gather(logits, pairs.answers)
        foils, in_foils = _gather(logits, pairs.foils)
        best_answer = answers.masked_fill(~in_answers, -torch.inf).amax(-1)
        right = best_answer > foils.masked_fill(~in_foils, -torch.inf).amax(-1)
    return right.float().mean(-1)


def _gather(values: Tensor, ids: tuple[_Ids, ...]) -> tuple[Tensor, Tensor]:
    """The values [..., B, K] at each pair's ids, from [..., B, V]; and which of the K are not padding, [B, K]."""
    width = max(len(row) for row in ids)
    index = torch.tensor([[*row, *[row[0]] * (width - len(row))] for row in ids], device=values.device)
    real = torch.arange(width, device=values.device) < torch.tensor(
        [[len(row)] for row in ids], device=values.device
    )
    return values.gather(-1, index.expand(*values.shape[:-1], width)), real
