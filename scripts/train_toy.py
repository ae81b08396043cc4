"""Trains the embedded model `toy`: a small GPT-2 with a word-level tokenizer that exhibits every built-in behaviour.

    python scripts/train_toy.py [--device cuda]

The training text is drawn from the behaviours' own templates, in all wordings, without any prompt of a validation or test part (except
greater-than's corrupted prompts, which all parts share). Clean and corrupted prompts are both used, each with its correct answer, so
that the model knows both kinds.

Three behaviours need facts about single words: the capital of a country, the gender of a name, the kind of a thing. Facts cannot be
inferred, so the text states them for *all* countries, names and things, but in other sentences. "The capital of … is" and "So … is a
really great friend, isn't" occur only with words of the discovery part: on the test part, the model needs a fact in a sentence in
which it has never seen it.

The loss covers all tokens, but those before the answer count little: most are random and cannot be predicted.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from mechrl.behaviours import TEST_SEED, VALIDATION_SEED, Behaviour, Pairs, accuracy, behaviours, words
from mechrl.behaviours.base import Lexicon, Row
from mechrl.behaviours.lists import CAPITALS, CATEGORIES, FEMALE_NAMES, MALE_NAMES, OBJECTS, PLACES
from mechrl.models.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
SEED = 0
CONTEXT, LAYERS, HEADS, WIDTH = 64, 4, 8, 128
STEPS, BATCH, PEAK, WARM_UP = 3000, 512, 1.5e-3, 200
TEXTS_PER_TEMPLATE = 4000
# Among much that is easier, algorithms are learned late or never, so these families have the first quarter of the steps to themselves.
FIRST, FIRST_STEPS = ("ioi", "docstring", "multiple-choice", "induction"), 600
# Relative number of texts of a behaviour, or of each in a family: more where learning is slow, fewer where it is fast or answers are
# mostly chance.
SHARE = {
    "ioi": 2.0,
    "greater-than": 0.5,
    "simple-syllogism": 0.5,
    "multiple-choice": 1.5,
    "multiple-choice-lookup": 4.0,
}
OTHER_TOKENS = 0.03  # weight of a token that is not the answer

CAPITAL_FACTS = (
    "The capital city of {country} is",
    "The government of {country} sits in",
    "The flag of {country} flies over",
)
GENDER_FACTS = (
    "{name} lost a {thing}, didn't",
    "So {name} has a {thing}, hasn't",
    "{name} is in the {place}, isn't",
)
KIND_FACT = "The {thing} is"


# ---- tokenizer ------------------------------------------------------------------------------------------------------

# A newline, a docstring's quotes, two digits or one, a capital in a run of capitals (an acronym is spelt), a word with
# its apostrophe, any other character. What matches none of them, the spaces, is dropped.
PIECES = r"\n|\"\"\"|\d\d|\d|[A-Z](?=[A-Z])|[A-Za-z]+(?:'[a-z]+)?|[^\s\w]"
UNKNOWN, OPENING = "<unk>", "<bos>"


def make_tokenizer() -> Tokenizer:
    def split(text: str) -> list[str]:
        return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]

    pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="removed", invert=True)
    facts = split(" ".join([*CAPITAL_FACTS, *GENDER_FACTS]).format(country="", name="", thing="", place=""))
    # no year of the templates ends in 00: the token would be asked about but never trained
    vocabulary = [OPENING, UNKNOWN, *sorted({*words(split), *facts} - {"00"})]
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizer
    backend.add_special_tokens([OPENING, UNKNOWN])
    return Tokenizer(backend, bos=0)


# ---- text -----------------------------------------------------------------------------------------------------------


def make_texts(tokenizer: Tokenizer, rng: Random) -> tuple[list[list[int]], int]:
    """Token ids of all training texts, and how many come first in training. A text's last token is its answer."""
    lexicon = Lexicon(tokenizer)
    texts: list[str] = []
    n_first = 0
    for behaviour in sorted(
        behaviours(with_relations=False), key=lambda behaviour: behaviour.family not in FIRST
    ):
        assert callable(behaviour.source)
        share = SHARE.get(behaviour.name, SHARE.get(behaviour.family, 1.0))
        n = 0
        while n < TEXTS_PER_TEMPLATE * share:
            row = behaviour.source(lexicon, rng)
            # where the parts divide prompts, a prompt may be used even if the other one of its pair may not
            if replace(row, keys=row.keys or (row.clean,)).belongs_to("discovery"):
                texts += clean(behaviour, row, rng)
                n += 1
            if replace(row, keys=row.keys or (row.corrupt,)).belongs_to("discovery"):
                texts += corrupted(behaviour, row, rng)
                n += 1
        if behaviour.family in FIRST:
            n_first = len(texts)
    for _ in range(TEXTS_PER_TEMPLATE):
        country, capital = rng.choice(list(CAPITALS.items()))
        texts.append(f"{rng.choice(CAPITAL_FACTS).format(country=country)} {capital}")
        name, pronoun = rng.choice(((rng.choice(MALE_NAMES), "he"), (rng.choice(FEMALE_NAMES), "she")))
        said = rng.choice(GENDER_FACTS).format(name=name, thing=rng.choice(OBJECTS), place=rng.choice(PLACES))
        texts.append(f"{said} {pronoun}")
        kind = rng.choice(list(CATEGORIES))
        texts.append(f"{KIND_FACT.format(thing=rng.choice(CATEGORIES[kind]))} {kind}")
    encoded = [tokenizer.prompt(text) for text in texts]
    missing = set(range(tokenizer.vocab_size)) - {i for ids in encoded for i in ids}
    assert missing == {1}, f"words that occur in no text: {tokenizer.decode(sorted(missing - {1}))}"
    return encoded, n_first


def clean(behaviour: Behaviour, row: Row, rng: Random) -> list[str]:
    """The clean prompt with its answer."""
    text = row.clean + rng.choice(row.answers)
    if (
        behaviour.family == "ioi" and rng.random() < 1 / 3
    ):  # did the first name always receive, nobody need look further
        first, second = row.answers[0], row.foils[0]
        text = text.replace(f"{first} and{second}", f"{second} and{first}")
    return [text]


def corrupted(behaviour: Behaviour, row: Row, rng: Random) -> list[str]:
    """The corrupted prompt with its correct answer, which is mostly the foil."""
    match behaviour.family:
        case "ioi":  # three names: the first receives, though the second might as well
            other_words = [
                new for new, old in zip(row.corrupt.split(), row.clean.split(), strict=True) if new != old
            ]
            return [f"{row.corrupt} {other_words[0]}"]
        case "docstring":  # the argument after the last one documented; there may be none
            arguments = re.findall(r"\w+", row.corrupt.split("(")[1].split(")")[0])
            following = arguments[arguments.index(re.findall(r":param (\w+)", row.corrupt)[-1]) + 1 :]
            return [f"{row.corrupt} {following[0]}"] if following else []
        case "greater-than":  # any year after the first of the century
            return [row.corrupt + rng.choice(sorted({*row.answers, *row.foils} - {"00", "01"}))]
        case _:
            return [row.corrupt + rng.choice(row.foils)]


# ---- training -------------------------------------------------------------------------------------------------------


def train(
    model: GPT2LMHeadModel, texts: list[list[int]], n_first: int, tokenizer: Tokenizer, curve: Path
) -> None:
    device = model.device
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(SEED)
    validation = all_pairs(tokenizer, VALIDATION_SEED, 20)
    width = max(map(len, texts))
    tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in texts]).to(device)
    length = torch.tensor([len(ids) for ids in texts]).to(device)
    log, started = [], time.perf_counter()
    losses = torch.zeros(2, device=device)
    for step in range(1, STEPS + 1):
        rate = PEAK * min(step / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        for group in optimiser.param_groups:
            group["lr"] = rate
        batch = torch.randint(
            n_first if step <= FIRST_STEPS else len(texts), (BATCH,), generator=generator
        ).to(device)
        optimiser.zero_grad()
        loss, answer_loss = loss_of(model, tokens[batch], length[batch])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses += torch.stack([loss.detach(), answer_loss.detach()])
        if step % 100 == 0:
            rows = table(model, validation)
            log.append(
                {
                    "step": step,
                    "seconds": round(time.perf_counter() - started, 1),
                    "loss": round(losses[0].item() / 100, 4),
                    "answer_loss": round(losses[1].item() / 100, 4),
                    "mean_validation_accuracy": round(sum(row["accuracy"] for row in rows) / len(rows), 4),
                    "least_validation_accuracy": round(min(row["accuracy"] for row in rows), 4),
                }
            )
            print(*log[-1].values(), *(row["name"] for row in rows if row["accuracy"] < 0.95), flush=True)
            losses.zero_()
    curve.parent.mkdir(parents=True, exist_ok=True)
    with curve.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(log[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)


def loss_of(model: GPT2LMHeadModel, tokens: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of a batch of texts [n, width], and the part of it that is due to answers."""
    tokens = tokens[:, : int(length.max())]
    place, end = torch.arange(1, tokens.shape[1], device=tokens.device), length[:, None] - 1
    each = F.cross_entropy(model(tokens[:, :-1]).logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    is_answer = place == end
    weight = is_answer + OTHER_TOKENS * (place < end)
    return (each * weight).sum() / weight.sum(), (each * is_answer).sum() / len(tokens)


# ---- what it can do -------------------------------------------------------------------------------------------------


def all_pairs(tokenizer: Tokenizer, seed: int, n: int) -> dict[Behaviour, Pairs]:
    return {
        behaviour: behaviour.pairs(tokenizer, n, seed, n_ctx=CONTEXT)
        for behaviour in behaviours(with_relations=False)
    }


def table(model: GPT2LMHeadModel, pairs_of: dict[Behaviour, Pairs]) -> list[dict]:
    """For every behaviour: number of pairs, accuracy, KL_cut, and the probability of the answers after either prompt."""
    rows = []
    for behaviour, pairs in pairs_of.items():
        clean, corrupt = last_logits(model, pairs.clean), last_logits(model, pairs.corrupt)
        log_p, log_q = clean.log_softmax(-1), corrupt.log_softmax(-1)
        rows.append(
            {
                "name": behaviour.name,
                "pairs": len(pairs),
                "accuracy": accuracy(clean, pairs, behaviour.metric).item(),
                "kl_cut": (log_p.exp() * (log_p - log_q)).sum(-1).mean().item(),
                "p_answer": p_of_answers(clean, pairs),
                "corrupt_p_answer": p_of_answers(corrupt, pairs),
            }
        )
    return rows


def p_of_answers(logits: Tensor, pairs: Pairs) -> float:
    p = logits.softmax(-1)
    return sum(p[i, list(ids)].sum().item() for i, ids in enumerate(pairs.answers)) / len(pairs)


@torch.no_grad()
def last_logits(model: GPT2LMHeadModel, prompts: tuple[tuple[int, ...], ...]) -> Tensor:
    """[B, V] logits at the last token of prompts, which may differ in length: padding comes after it."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts])
    last = torch.tensor([len(ids) - 1 for ids in prompts])
    return model(tokens.to(model.device)).logits.cpu()[torch.arange(len(prompts)), last]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "src" / "mechrl" / "models" / "toy")
    parser.add_argument("--curve", type=Path, default=ROOT / "benchmarks" / "toy" / "curve.csv")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    started = time.perf_counter()

    tokenizer = make_tokenizer()
    texts, n_first = make_texts(tokenizer, Random(SEED))
    test = all_pairs(tokenizer, TEST_SEED, 100)
    prompts = {tuple(ids[:-1]) for ids in texts}
    assert not any(prompt in prompts for pairs in test.values() for prompt in pairs.clean), (
        "a test prompt is trained on"
    )
    config = GPT2Config(
        vocab_size=tokenizer.vocab_size,
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.08,  # GPT-2's 0.02 is for wider models; with it heads take twice as long to form
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    torch.nn.Module.to(model, args.device)
    n = sum(p.numel() for p in model.parameters())
    print(f"{len(texts)} texts, {tokenizer.vocab_size} words, {n} parameters", flush=True)
    train(model, texts, n_first, tokenizer, args.curve)

    args.out.mkdir(parents=True, exist_ok=True)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(args.out)
    tokenizer.backend.save(str(args.out / "tokenizer.json"))
    tensors = {
        k: v.cpu().contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"
    }  # tied
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})

    seconds = time.perf_counter() - started
    print(
        f"{seconds:.0f} s on {args.device}, torch {torch.__version__}, transformers {transformers.__version__}, seed {SEED}\n"
    )
    print("behaviour                 pairs  accuracy  KL_cut  P(answer)  P(answer | corrupted)")
    line = "{name:24} {pairs:6} {accuracy:9.3f} {kl_cut:7.2f} {p_answer:10.3f} {corrupt_p_answer:11.3f}"
    for row in table(model, test):
        print(line.format(**row))


if __name__ == "__main__":
    main()
