"""Few-shot relations: three examples and a query, `big -> bigger` … `fast ->` → faster. Corrupted: another query word.

A relation is a list of word pairs. Both prompts have the same examples; the foil is the answer to the other query. A set of examples
belongs to one part.
"""

from __future__ import annotations

from functools import partial
from random import Random

from mechrl.behaviours import relation_words as w
from mechrl.behaviours.base import Behaviour, Lexicon, Row, Unbuildable
from mechrl.behaviours.relation_words import Words

SHOTS = 3
AT_LEAST = 10  # pairs; with fewer a part has too few texts of examples
_DRAWS = 1000


def draw(words: Words, lexicon: Lexicon, rng: Random) -> Row:
    known = _known(words, lexicon)
    for _ in range(_DRAWS):
        (query, answer), (other, foil) = rng.sample(known, 2)
        # at the start of a line a query has no space before it and may be several tokens
        if answer == foil or len(lexicon.tokenizer.encode(query)) != len(lexicon.tokenizer.encode(other)):
            continue
        others = [pair for pair in known if not {query, other} & set(pair)]
        if len(others) < SHOTS:
            continue
        shots = "".join(f"{first} -> {second}\n" for first, second in rng.sample(others, SHOTS))
        return Row(f"{shots}{query} ->", f"{shots}{other} ->", (f" {answer}",), (f" {foil}",), keys=(shots,))
    raise Unbuildable("no two queries have the same number of tokens")


def _known(words: Words, lexicon: Lexicon) -> list[tuple[str, str]]:
    """The pairs whose words are both a single token after a space."""
    known = [pair for pair in words if all(lexicon.id(f" {word}") is not None for word in pair)]
    if len(known) < AT_LEAST:
        raise Unbuildable(f"it has {len(known)} pairs of single-token words, {AT_LEAST} are needed")
    return known


def _relation(name: str, family: str, description: str, words: Words) -> Behaviour:
    return Behaviour(name, family, "extra", "logit-difference", description, partial(draw, words))


BEHAVIOURS = (
    _relation("comparative", "comparative", "compares: 'fast ->' → faster", w.COMPARATIVE),
    _relation("superlative", "comparative", "compares with all: 'fast ->' → fastest", w.SUPERLATIVE),
    _relation("past-tense", "past-tense", "puts a verb into the past: 'go ->' → went", w.PAST_TENSE),
    _relation(
        "past-participle", "past-tense", "forms the past participle: 'write ->' → written", w.PAST_PARTICIPLE
    ),
    _relation("base-form", "past-tense", "takes a verb back from the past: 'went ->' → go", w.BASE_FORM),
    _relation("participle", "participle", "forms the present participle: 'run ->' → running", w.PARTICIPLE),
    _relation("third-person", "third-person", "forms the third person: 'go ->' → goes", w.THIRD_PERSON),
    _relation("plural", "plural", "forms the plural: 'child ->' → children", w.PLURAL),
    _relation("singular", "plural", "forms the singular: 'children ->' → child", w.SINGULAR),
    _relation("agent-noun", "agent-noun", "names who does it: 'teach ->' → teacher", w.AGENT_NOUN),
    _relation("adverb", "adverb", "makes an adjective an adverb: 'quick ->' → quickly", w.ADVERB),
    _relation(
        "negative-prefix", "negative-prefix", "negates by a prefix: 'happy ->' → unhappy", w.NEGATIVE_PREFIX
    ),
    _relation("verb-noun", "verb-noun", "makes a verb a noun: 'decide ->' → decision", w.VERB_NOUN),
    _relation(
        "adjective-noun",
        "adjective-noun",
        "makes an adjective a noun: 'dark ->' → darkness",
        w.ADJECTIVE_NOUN,
    ),
    _relation("opposite", "opposite", "gives the opposite: 'hot ->' → cold", w.OPPOSITE),
    _relation("male-female", "male-female", "gives the female: 'king ->' → queen", w.MALE_FEMALE),
    _relation("category", "category", "says what kind of thing it is: 'rose ->' → flower", w.CATEGORY),
    _relation("workplace", "workplace", "says where somebody works: 'teacher ->' → school", w.WORKPLACE),
    _relation(
        "country-language",
        "country-language",
        "gives a country's language: 'Brazil ->' → Portuguese",
        w.COUNTRY_LANGUAGE,
    ),
    _relation(
        "demonym", "country-language", "gives a country's adjective: 'Brazil ->' → Brazilian", w.DEMONYM
    ),
    _relation(
        "country-continent",
        "country-continent",
        "gives a country's continent: 'Kenya ->' → Africa",
        w.COUNTRY_CONTINENT,
    ),
    _relation(
        "city-country",
        "city-country",
        "gives the country of a city that is no capital: 'Milan ->' → Italy",
        w.CITY_COUNTRY,
    ),
    _relation(
        "product-company", "product-company", "says who makes it: 'Windows ->' → Microsoft", w.PRODUCT_COMPANY
    ),
    _relation(
        "element-symbol", "element-symbol", "gives an element's symbol: 'iron ->' → Fe", w.ELEMENT_SYMBOL
    ),
    _relation(
        "state-abbreviation",
        "state-abbreviation",
        "abbreviates a state: 'Texas ->' → TX",
        w.STATE_ABBREVIATION,
    ),
    _relation("month-successor", "successor", "gives the next month: 'May ->' → June", w.MONTH_SUCCESSOR),
    _relation(
        "number-successor", "successor", "gives the next number: 'three ->' → four", w.NUMBER_SUCCESSOR
    ),
    _relation("letter-successor", "successor", "gives the next letter: 'C ->' → D", w.LETTER_SUCCESSOR),
    _relation(
        "abbreviation", "abbreviation", "abbreviates a day or month: 'March ->' → Mar", w.MONTH_ABBREVIATION
    ),
    _relation("capitalise", "capitalise", "capitalises a word: 'apple ->' → Apple", w.CAPITALISE),
    _relation("lowercase", "capitalise", "takes a capital away: 'Apple ->' → apple", w.LOWERCASE),
    _relation("uppercase", "capitalise", "puts a word in capitals: 'the ->' → THE", w.UPPERCASE),
    _relation("first-letter", "first-letter", "gives a word's first letter: 'apple ->' → A", w.FIRST_LETTER),
    _relation("word-repeat", "word-repeat", "repeats a word: 'apple ->' → apple", w.WORD_REPEAT),
)
