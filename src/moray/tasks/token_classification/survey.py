"""The tags of a dataset: their names, and whether they spell entities."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from moray.config.schema.datasets import Dataset
from moray.corpus.dataset import Document, tags_of
from moray.tasks.classification.survey import (
    OF_WORDS,
    check_trained,
    in_order,
    lines_about_similar,
    number_in,
)

OUTSIDE = "O"
"""The tag of words that are part of no entity."""

_ENTITY = re.compile("[BIESLUM]-.+")


def spell_entities(names: Sequence[str]) -> bool:
    """Whether tags are those of entities: `O`, and types behind a letter, such as `B-PER`."""
    others = [name for name in names if name != OUTSIDE]
    return bool(others) and all(map(_ENTITY.fullmatch, others))


def survey_of(section: Dataset) -> "TagSurvey":
    """The survey of a dataset that is read now."""
    return TagSurvey()


class TagSurvey:
    """The `Survey` of a dataset of words with tags."""

    noun = "text"

    def __init__(self) -> None:
        self._path = ""
        self._trained, self._held_out = Counter[str](), Counter[str]()

    def check(self, path: str) -> None:
        self._path = path

    def note(self, split: str, document: Document) -> None:
        counts = self._trained if split == "train" else self._held_out
        counts.update(tags_of(document))

    def facts(self) -> dict[str, Any]:
        """The names of the tags.

        Raises:
            UserError: if there is only one, or some are only held out.
        """
        names = self._names
        check_trained(names, self._trained, self._path, "tags")
        return {"problem_type": OF_WORDS, "label_names": names}

    @property
    def _names(self) -> list[str]:
        return in_order({**self._trained, **self._held_out})

    @property
    def summary(self) -> str:
        words, names = (self._trained + self._held_out).total(), self._names
        kind = "entities" if spell_entities(names) else "words, not of entities"
        return f"texts with {words:,} words of {len(names):,} tags (of {kind})"

    def lines(self, dataset: str) -> Iterator[str]:
        names = self._names
        yield from lines_about_similar(names, dataset)
        odd = [name for name in names if name != OUTSIDE and not _ENTITY.fullmatch(name)]
        if odd and len(odd) < len(names) - (OUTSIDE in names):
            yield (
                f"warning: dataset {dataset}: {odd[0]} isn't the tag of an entity, such as B-PER, "
                "and others are, so words are scored instead of entities"
            )
        if all(number_in(name) is not None for name in names):
            yield (
                f"dataset {dataset}: its tags are numbers without names; entities are scored if "
                "they are written by names, such as B-PER"
            )
