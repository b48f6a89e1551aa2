"""Names of classes."""

from moray.corpus.class_labels import similar_names


def test_names_that_look_the_same_are_found() -> None:
    names = ["cat", "Dog", "caf\u00e9", "dog ", "cafe\u0301", "bird", "cats"]
    assert sorted(map(sorted, similar_names(names))) == [
        ["Dog", "dog "],
        ["cafe\u0301", "caf\u00e9"],
    ]
    assert similar_names(["0", "1", "10"]) == []
