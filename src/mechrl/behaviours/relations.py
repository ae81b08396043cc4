"""Few-shot relations: three examples and a query, `big -> bigger` … `fast ->` → faster. Corrupted: another query word.

The examples are the same in both prompts, and no two parts share a set of them. The foil is the answer to the other query.
"""

from __future__ import annotations

from functools import partial
from random import Random

from mechrl.behaviours import relation_words as w
from mechrl.behaviours.base import Behaviour, Lexicon, Row, Unbuildable
from mechrl.behaviours.relation_words import Words

SHOTS = 3
AT_LEAST = 10  # pairs; with fewer, a part has too few sets of examples
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
    _relation("comparative", "comparative", "forms the comparative: 'fast ->' → faster", w.COMPARATIVE),
    _relation("superlative", "comparative", "forms the superlative: 'fast ->' → fastest", w.SUPERLATIVE),
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
    _relation("adverb", "adverb", "turns an adjective into an adverb: 'quick ->' → quickly", w.ADVERB),
    _relation(
        "negative-prefix", "negative-prefix", "negates by a prefix: 'happy ->' → unhappy", w.NEGATIVE_PREFIX
    ),
    _relation("verb-noun", "verb-noun", "turns a verb into a noun: 'decide ->' → decision", w.VERB_NOUN),
    _relation(
        "adjective-noun",
        "adjective-noun",
        "turns an adjective into a noun: 'dark ->' → darkness",
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
        "gives the country of a city other than the capital: 'Milan ->' → Italy",
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
    _relation("lowercase", "capitalise", "removes the capital: 'Apple ->' → apple", w.LOWERCASE),
    _relation("uppercase", "capitalise", "puts a word in capitals: 'the ->' → THE", w.UPPERCASE),
    _relation("first-letter", "first-letter", "gives a word's first letter: 'apple ->' → A", w.FIRST_LETTER),
    _relation("word-repeat", "word-repeat", "repeats a word: 'apple ->' → apple", w.WORD_REPEAT),
    _relation("synonym", "synonym", "gives a synonym: 'big ->' → large", w.SYNONYM),
    _relation(
        "british-spelling",
        "british-spelling",
        "spells it the British way: 'color ->' → colour",
        w.BRITISH_SPELLING,
    ),
    _relation(
        "part-of-speech",
        "part-of-speech",
        "names the part of speech: 'quickly ->' → adverb",
        w.PART_OF_SPEECH,
    ),
    _relation("verb-object", "verb-object", "says what it is done to: 'read ->' → book", w.VERB_OBJECT),
    _relation(
        "maker-product", "maker-product", "says what somebody makes: 'baker ->' → bread", w.MAKER_PRODUCT
    ),
    _relation(
        "cause-effect", "cause-effect", "gives the effect of a cause: 'fire ->' → smoke", w.CAUSE_EFFECT
    ),
    _relation(
        "place-contents", "place-contents", "says what a place holds: 'bakery ->' → bread", w.PLACE_CONTENTS
    ),
    _relation("worn-on", "worn-on", "says where it is worn: 'hat ->' → head", w.WORN_ON),
    _relation(
        "first-name", "first-name", "gives a famous person's first name: 'Einstein ->' → Albert", w.FIRST_NAME
    ),
    _relation(
        "science-subject",
        "science-subject",
        "says what a field studies: 'astronomy ->' → stars",
        w.SCIENCE_SUBJECT,
    ),
    _relation(
        "unit-quantity", "unit-quantity", "says what a unit measures: 'watt ->' → power", w.UNIT_QUANTITY
    ),
    _relation("language-code", "language-code", "gives a language's code: 'German ->' → de", w.LANGUAGE_CODE),
)
