"""Figures of tags are those of seqeval and scikit-learn."""

import random
from itertools import chain

import numpy as np
import pytest
from sklearn import metrics

from moray.tasks.token_classification.scores import Entities, accuracy, of_entities, of_words
from moray.tasks.token_classification.survey import spell_entities

Texts = list[list[int]]
# Micro precision, recall and F1, the F1 of both types, and accuracy: by seqeval 1.2.2, in its
# default mode, of the texts of `drawn`, whose tags have these letters. It knows `E` and `S` only,
# so it was given `E` for `L`, `S` for `U` and `I` for `M`.
SEQEVAL = [
    ("BI", (0.725663717, 0.694915254, 0.709956710), (0.690265487, 0.728813559), 0.766467066),
    ("BIES", (0.746987952, 0.751515152, 0.749244713), (0.736196319, 0.761904762), 0.738095238),
    ("I", (0.666666667, 0.666666667, 0.666666667), (0.650000000, 0.681818182), 0.807692308),
    ("BILU", (0.824324324, 0.807947020, 0.816053512), (0.831168831, 0.800000000), 0.737430168),
    ("S", (0.828358209, 0.750000000, 0.787234043), (0.813333333, 0.757575758), 0.791666667),
    ("BIESLU", (0.791139241, 0.776397516, 0.783699060), (0.742514970, 0.828947368), 0.721649485),
    ("BMES", (0.742857143, 0.710382514, 0.726256983), (0.727272727, 0.725388601), 0.705882353),
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


# Micro precision, recall and F1: by seqeval 1.2.2, mode="strict", of the texts of `well_formed`
# with scheme=BILOU, and the same with scheme=IOBES.
STRICT = (0.642236025, 0.652777778, 0.647463995)


def well_formed(letters: str) -> tuple[list[list[str]], list[list[str]]]:
    """Tags of texts, and what is said of them, whose entities begin and end as a scheme asks.

    Args:
        letters: of a first, an inner, a last and a single word.
    """
    first, inner, last, single = [*letters]
    draw = random.Random(0)

    def words(size: int) -> list[str]:
        """Tags of so many words: entities of up to four, or words outside."""
        tags: list[str] = []
        while len(tags) < size:
            kind, length = draw.choice("AB"), min(draw.randint(0, 4), size - len(tags))
            shape = f"{first}{inner * (length - 2)}{last}" if length > 1 else single * length
            tags += [f"{letter}-{kind}" for letter in shape] or ["O"]
        return tags

    texts: tuple[list[list[str]], list[list[str]]] = [], []
    for _ in range(200):
        parts = [words(draw.randint(1, 6)) for _ in range(draw.randint(1, 4))]
        said = [part if draw.random() < 0.6 else words(len(part)) for part in parts]
        for some, of in zip(texts, (parts, said), strict=True):
            some.append([*chain.from_iterable(of)])
    return texts


def figures(truth: list[list[str]], said: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 of the entities of texts."""
    names = sorted({name for text in truth + said for name in text})
    numbers = ([np.array([*map(names.index, text)]) for text in some] for some in (truth, said))
    return of_entities(names, *numbers).whole(np.ones(len(truth)))


@pytest.mark.parametrize("letters", ["BILU", "BIES", "BMES"])
def test_letters_of_a_last_and_a_single_word_end_an_entity(letters: str) -> None:
    found = figures(*well_formed(letters))
    assert [*found.values()] == pytest.approx(STRICT, abs=1e-8)


@pytest.mark.parametrize(
    ("truth", "said", "f1"),
    [
        ("U U O", "U O O", 2 / 3),
        ("B L B L", "O O B L", 2 / 3),
        ("B L B L", "B L O O", 2 / 3),
        ("U U", "B L", 0),
        ("B I L U", "B I L U", 1),
    ],
)
def test_entities_of_one_type_beside_each_other_are_two(truth: str, said: str, f1: float) -> None:
    def tags(letters: str) -> list[str]:
        return [letter if letter == "O" else f"{letter}-PER" for letter in letters.split()]

    assert figures([tags(truth)], [tags(said)])["f1"] == pytest.approx(f1)


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
