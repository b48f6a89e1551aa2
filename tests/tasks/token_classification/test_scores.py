"""Figures of tags are those of seqeval and scikit-learn."""

import random

import numpy as np
import pytest
from sklearn import metrics

from moray.tasks.token_classification.scores import Entities, accuracy, of_entities, of_words
from moray.tasks.token_classification.survey import spell_entities

Texts = list[list[int]]
# Micro precision, recall and F1, the F1 of both types, and accuracy: by seqeval 1.2.2, in its
# default mode, of the texts of `drawn`, whose tags have these letters.
SEQEVAL = [
    ("BI", (0.725663717, 0.694915254, 0.709956710), (0.690265487, 0.728813559), 0.766467066),
    ("BIES", (0.746987952, 0.751515152, 0.749244713), (0.736196319, 0.761904762), 0.738095238),
    ("I", (0.666666667, 0.666666667, 0.666666667), (0.650000000, 0.681818182), 0.807692308),
    ("BILU", (0.758928571, 0.739130435, 0.748898678), (0.738738739, 0.758620690), 0.737430168),
    ("S", (0.828358209, 0.750000000, 0.787234043), (0.813333333, 0.757575758), 0.791666667),
    ("BIESLU", (0.699248120, 0.678832117, 0.688888889), (0.623188406, 0.757575758), 0.721649485),
]


def drawn(letters: str) -> tuple[list[str], Texts, Texts]:
    """Names of tags, the tags of some texts, and what is said of them."""
    draw = random.Random(f"0 {letters}")
    names = sorted(["O", *(f"{letter}-{kind}" for letter in letters for kind in ("A", "B-C"))])
    texts = [[draw.randrange(len(names)) for _ in range(draw.randint(1, 12))] for _ in range(30)]
    said = [
        [tag if draw.random() < 0.7 else draw.randrange(len(names)) for tag in text]
        for text in texts
    ]
    return names, texts, said


def arrays(texts: Texts) -> list[np.ndarray]:
    return [np.array(text) for text in texts]


@pytest.mark.parametrize(("letters", "whole", "each", "right"), SEQEVAL)
def test_figures_of_entities_are_those_of_seqeval(
    letters: str, whole: tuple[float, ...], each: tuple[float, ...], right: float
) -> None:
    tags, texts, said = drawn(letters)
    assert spell_entities(tags)
    once = np.ones(len(texts))
    found = of_entities(tags, arrays(texts), arrays(said))
    share = accuracy(arrays(texts), arrays(said))(once)["accuracy"]
    for names, figures, expected in (
        (("precision", "recall", "f1"), found.whole(once), whole),
        (("A", "B-C"), found.each(once), each),
        (("accuracy",), {"accuracy": share}, (right,)),
    ):
        assert figures == pytest.approx(dict(zip(names, expected, strict=True)), abs=1e-8)


def test_a_resample_counts_a_text_as_often_as_it_was_drawn() -> None:
    names, texts, said = drawn("BI")
    times = np.random.default_rng(0).integers(3, size=len(texts))
    repeated = [
        [text for text, count in zip(some, times, strict=True) for _ in range(count)]
        for some in (texts, said)
    ]
    once = of_entities(names, arrays(texts), arrays(said))
    again = of_entities(names, *map(arrays, repeated))
    assert once.whole(times) == pytest.approx(again.whole(np.ones(len(repeated[0]))))


def test_entities_are_counted_by_type_and_end_with_their_text() -> None:
    names = ["B-LOC", "I-LOC", "I-PER", "O"]
    truth = arrays([[0, 1], [1, 3, 2]])
    said = arrays([[0, 1], [0, 3, 3]])
    right, there, found = Entities(names).counts(truth, said)
    assert there.tolist() == [[1, 0], [1, 1]]
    assert found.tolist() == [[1, 0], [1, 0]]
    assert right.tolist() == [[1, 0], [1, 0]]


def test_a_word_of_which_nothing_is_said_is_wrong_and_in_no_entity() -> None:
    names = ["B-A", "I-A", "O"]
    truth, said = arrays([[0, 1, 2]]), arrays([[0, -1, -1]])
    assert of_entities(names, truth, said).whole(np.ones(1))["f1"] == 0
    assert accuracy(truth, said)(np.ones(1))["accuracy"] == pytest.approx(1 / 3)


def test_figures_of_other_tags_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    names = ["NOUN", "O", "VERB", "X-Y"]
    assert not spell_entities(names)
    truth, said = ([draw.integers(4, size=9) for _ in range(20)] for _ in range(2))
    found = of_words(names, truth, said)
    flat = np.concatenate(truth), np.concatenate(said)
    for kind in ("macro", "weighted"):
        expected = metrics.f1_score(*flat, average=kind)
        assert found.whole(np.ones(20))[f"f1_{kind}"] == pytest.approx(expected)
    each = metrics.f1_score(*flat, average=None)
    assert list(found.each(np.ones(20)).values()) == pytest.approx(each)
    assert sum(found.there.values()) == 180
