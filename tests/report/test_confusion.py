"""The confusion matrix of a run that classifies."""

import numpy as np

from moray.report.confusion import confusion_of


def test_of_many_classes_those_with_mistakes_are_shown() -> None:
    confusion = np.diag([5, 5, 5, 5])
    confusion[1, 3], confusion[3, 0] = 2, 1
    value = {"label_names": list("abcd"), "by_class": {"tuned": {"confusion": confusion.tolist()}}}
    found = confusion_of(value, classes=2)
    assert (found.names, found.counts, found.left_out) == (["b", "d"], [[5, 2], [0, 5]], 2)
    assert found.shares == [[0.714, 0.286], [0.0, 0.833]]
