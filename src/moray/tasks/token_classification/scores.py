"""Figures of tags, from how often each text counts.

Entities are those that seqeval finds in its default mode, which follows the script of CoNLL-2000: a
word begins one by `B` or `S`, and also by `I` or `E` where none of its type goes on. seqeval knows
other letters of the last and the only word of an entity in its strict mode only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moray.tasks.classification.scores import Array, Scorer, mean_f1, ratio
from moray.tasks.token_classification.survey import OUTSIDE

# Letters of BILOU and BMES, by those of BIOES that mean the same.
_SAME = {"L": "E", "U": "S", "M": "I"}

Tags = Sequence[NDArray[np.int64]]
"""The numbers of the tags of each text's words, from 0; -1 for a word of which nothing is said."""


class Entities:
    """Entities of texts, and how many of them are right.

    Attributes:
        types: the names of their types.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.types = sorted({_type(name) for name in names if name != OUTSIDE})
        numbers = {name: number for number, name in enumerate(self.types)}
        # The last one, -1, is outside, as is the end of a text.
        each = [*names, OUTSIDE]
        self._letters = np.array([ord(_SAME.get(name[0], name[0])) for name in each])
        self._types = np.array([numbers.get(_type(name), len(numbers)) for name in each])

    def counts(self, truth: Tags, said: Tags) -> Array:
        """Entities that are right, that there are, and that are said, shape (3, texts, types)."""
        there, found = (self._spans(tags) for tags in (truth, said))
        texts = np.repeat(np.arange(len(truth)), [len(tags) + 1 for tags in truth])
        counts = np.zeros((3, len(truth), len(self.types)), np.int64)
        for table, spans in zip(counts, (there & found, there, found), strict=True):
            first, _, types = np.array([*spans], np.int64).reshape(-1, 3).T
            np.add.at(table, (texts[first], types), 1)
        return counts

    def _spans(self, tags: Tags) -> set[tuple[int, int, int]]:
        """First word, last word and type of each entity; the words of all texts are numbered."""
        flat = np.concatenate([np.append(each, -1) for each in tags])
        letters, types = self._letters[flat], self._types[flat]
        before = np.append(ord(OUTSIDE), letters[:-1])
        # The first word comes after nothing.
        type_before = np.append(-1, types[:-1])

        def among(values: Array, some: str) -> Array:
            return np.isin(values, [ord(letter) for letter in some])

        other = types != type_before
        ends = (
            among(before, "ES")
            | (among(before, "BI") & among(letters, "BSO"))
            | (~among(before, "O.") & other)
        )
        begins = (
            among(letters, "BS")
            | (among(before, "ESO") & among(letters, "EI"))
            | (~among(letters, "O.") & other)
        )
        first = np.maximum.accumulate(np.where(begins, np.arange(len(flat)), 0))
        last = np.flatnonzero(ends) - 1
        return {*zip(*(each.tolist() for each in (first[last], last, types[last])), strict=True)}


def _type(tag: str) -> str:
    return tag[1:].split("-", maxsplit=1)[-1] or "_"


@dataclass(frozen=True)
class Scores:
    """Figures of entities, or of words.

    Attributes:
        whole: computes those of all.
        each: computes the F1 of each type of entity, or of each tag, by its name.
        there: how many of each there are.
    """

    whole: Scorer
    each: Scorer
    there: dict[str, int]


def of_entities(names: Sequence[str], truth: Tags, said: Tags) -> Scores:
    """The figures of entities: a type is right if its first and last word are."""
    entities = Entities(names)
    counts = entities.counts(truth, said)

    def whole(times: Array) -> dict[str, float]:
        right, there, found = (times @ counts).sum(-1)
        return {
            "precision": float(ratio(right, found)),
            "recall": float(ratio(right, there)),
            "f1": float(ratio(2 * right, there + found)),
        }

    def each(times: Array) -> dict[str, float]:
        right, there, found = times @ counts
        return dict(zip(entities.types, ratio(2 * right, there + found).tolist(), strict=True))

    there = counts[1].sum(0).tolist()
    return Scores(whole, each, dict(zip(entities.types, there, strict=True)))


def of_words(names: Sequence[str], truth: Tags, said: Tags) -> Scores:
    """The figures of tags that spell no entities, such as parts of speech."""
    tables = [_by_text(tags, len(names)) for tags in (truth, said)]
    hits = [np.where(a == b, a, -1) for a, b in zip(truth, said, strict=True)]
    counts = np.stack([_by_text(hits, len(names)), *tables])

    def whole(times: Array) -> dict[str, float]:
        return mean_f1(*(times @ counts))

    def each(times: Array) -> dict[str, float]:
        right, there, found = times @ counts
        return dict(zip(names, ratio(2 * right, there + found).tolist(), strict=True))

    there = counts[1].sum(0).tolist()
    return Scores(whole, each, dict(zip(names, there, strict=True)))


def _by_text(tags: Tags, names: int) -> Array:
    """How often each text has each tag, shape (texts, names)."""
    return np.stack([np.bincount(each[each >= 0], minlength=names) for each in tags])


def mean_loss(losses: Array, words: Array) -> Scorer:
    """What computes the mean loss of words, from the sum and the number of those of each text."""
    return lambda times: {"loss": float(times @ losses / (times @ words))}


def accuracy(truth: Tags, said: Tags) -> Scorer:
    """What computes the share of words whose tag is right."""
    right = np.array([(a == b).sum() for a, b in zip(truth, said, strict=True)])
    words = np.array([len(each) for each in truth])
    return lambda times: {"accuracy": float(times @ right / (times @ words))}
