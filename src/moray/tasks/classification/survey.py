"""The labels of a dataset of texts: what kind of problem they are, and their names."""

import json
import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from moray.config.schema.datasets import Dataset, ProblemType
from moray.corpus.class_labels import similar_names
from moray.corpus.dataset import Document
from moray.errors import UserError

SINGLE: ProblemType = "single_label_classification"
MULTI: ProblemType = "multi_label_classification"
REGRESSION: ProblemType = "regression"
OF_WORDS = "token_classification"
"""The problem of a dataset whose words have a class each."""
# More are hardly classes, and each is kept in memory.
_MOST_CLASSES = 10_000
_SHOWN = 5
# Zeros that no number is written with: those of a code, such as 007.1 of ICD-9, which isn't 7.1.
_CODE = re.compile(r"\s*0[0-9]")
# By which transformers ignores a label in its losses.
_IGNORED = "-100"


def survey_of(section: Dataset) -> "LabelSurvey":
    """The survey of a dataset that is read now."""
    return LabelSurvey(getattr(section, "problem_type", None))


class LabelSurvey:
    """The `Survey` of a dataset of texts with labels."""

    noun = "text"

    def __init__(self, problem_type: ProblemType | None) -> None:
        self._problem_type = problem_type
        self._path = ""
        self._trained = Counter[str]()
        self._held_out = Counter[str]()
        # Distinct labels by kind, of which only some are kept.
        self._are_lists = set[bool]()
        self._fractions = self._words = self._codes = 0
        self._word: str | None = None

    def check(self, path: str) -> None:
        self._path = path

    def note(self, split: str, document: Document) -> None:
        """Note the label of a document.

        Raises:
            UserError: if some labels are lists and others not, or one has a name twice.
        """
        label = document["label"]
        counts = self._trained if split == "train" else self._held_out
        names = names_in(label)
        self._are_lists.add(names is not None)
        if len(self._are_lists) > 1:
            raise UserError(
                self._path,
                "got a list of labels in some rows, and one label in others",
                "write lists in all of them, of one name or of none where it has to be",
            )
        if names is None:
            self._note_number(label)
        elif len({*names}) < len(names):
            # In a table of text; other lists have been checked.
            raise UserError(
                self._path,
                f"got a label more than once in {label}",
                "list the names of a text's labels; of zeros and ones, those that are one",
            )
        for name in [label] if names is None else names:
            if name in counts or len(counts) <= _MOST_CLASSES:
                counts[name] += 1

    def _note_number(self, label: str) -> None:
        number = number_in(label)
        if number is not None:
            self._fractions += not number.is_integer()
            self._codes += bool(_CODE.match(label))
        else:
            self._words += 1
            self._word = self._word or label

    def facts(self) -> dict[str, Any]:
        """The problem, and the names of its classes.

        Raises:
            UserError: if labels don't fit the problem, or no training row has one of them.
        """
        problem = self.problem_type
        if (problem == MULTI) != (True in self._are_lists):
            got = "lists" if True in self._are_lists else "no lists"
            raise self._misfit(f"got {problem}, but labels are {got}")
        if problem == REGRESSION:
            if self._words:
                raise self._misfit(f"got {problem}, but {self._word} is a label")
            return {"problem_type": problem, "label_names": []}
        if not self._problem_type and self._fractions > self._words > 0:
            raise UserError(
                f"{self._path}.problem_type",
                f"got {self._fractions:,} labels that are numbers with a fraction, and "
                f"{self._words:,} that are none, such as {self._word}",
                f"fix those rows to predict numbers, or set {SINGLE}",
            )
        names = self._names
        if len(names) > _MOST_CLASSES:
            raise self._misfit(f"got {problem}, but there are more than {_MOST_CLASSES:,} labels")
        self._check_numbers(names)
        check_trained(names, self._trained, self._path, "labels")
        return {"problem_type": problem, "label_names": names}

    def _check_numbers(self, names: Sequence[str]) -> None:
        ignored = self._trained[_IGNORED] + self._held_out[_IGNORED]
        if ignored and all(number_in(name) is not None for name in names):
            predict = f", or set problem_type: {REGRESSION} if it is a number to predict"
            raise UserError(
                self._path,
                f"got {_IGNORED} as the label of {ignored:,} rows, which stands for no label",
                f"remove those rows{predict * (True not in self._are_lists)}",
            )

    def _misfit(self, problem: str) -> UserError:
        return UserError(f"{self._path}.problem_type", problem, "change it, or the labels")

    @property
    def problem_type(self) -> ProblemType:
        """The problem that the config says, or that the labels are."""
        if self._problem_type:
            return self._problem_type
        if True in self._are_lists:
            return MULTI
        are_numbers = self._fractions and not self._words and not self._codes
        return REGRESSION if are_numbers else SINGLE

    @property
    def _names(self) -> list[str]:
        """The names of all classes: numbers by size, words by the alphabet."""
        return in_order({**self._trained, **self._held_out})

    @property
    def summary(self) -> str:
        if self.problem_type == REGRESSION:
            return f"texts with a number each ({REGRESSION})"
        return f"texts of {len(self._names):,} classes ({self.problem_type})"

    def lines(self, dataset: str) -> Iterator[str]:
        names = self._names if self.problem_type != REGRESSION else ()
        yield from lines_about_similar(names, dataset)
        # Classes that count from 0 have no such one; with -1 alone, it may be one of two or three.
        if names[:1] == ["-1"] and [*map(str, range(len(names) - 1))] == names[1:]:
            number = self._trained["-1"] + self._held_out["-1"]
            yield (
                f"dataset {dataset}: -1 is a class, that of {number:,} rows; if it says that they "
                "have none, remove them"
            )


def check_trained(names: Sequence[str], trained: Container[str], path: str, what: str) -> None:
    """Check that there are several classes, all of them in rows to train on.

    Args:
        path: of the dataset in the config.
        what: a word for the classes, plural.

    Raises:
        UserError: if not.
    """
    if len(names) < 2:
        raise UserError(path, f"got one class, {', '.join(names)}", "add another")
    if unseen := [name for name in names if name not in trained]:
        raise UserError(
            path,
            f"{len(unseen)} of {len(names)} {what} are in no row to train on, only in held-out "
            f"ones: {', '.join(unseen[:_SHOWN])}{', …' if len(unseen) > _SHOWN else ''}",
            "add rows that have them, remove those rows, or give a file for test",
        )


def in_order(names: Iterable[str]) -> list[str]:
    """Names of classes in their order: numbers by size, words by the alphabet."""
    names = [*names]
    if any(number_in(name) is None for name in names):
        return sorted(names)
    return sorted(names, key=lambda name: (float(name), name))


def lines_about_similar(names: Iterable[str], dataset: str) -> Iterator[str]:
    """Lines about names of a dataset's classes that may be meant to be one."""
    for some in similar_names(names):
        yield (
            f"warning: dataset {dataset}: {' and '.join(map(ascii, some))} are labels of "
            "their own, and differ only in case, white space or Unicode form"
        )


def names_in(label: str) -> list[str] | None:
    """The names in a list of labels, as a dataset has it; None if it is one label."""
    if not label.startswith("["):
        return None
    try:
        names = json.loads(label)
    except ValueError:
        return None
    return [*map(str, names)] if isinstance(names, list) else None


def number_in(label: str) -> float | None:
    """A label as a number, if it is one."""
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
