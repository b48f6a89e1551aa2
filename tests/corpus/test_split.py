"""Which documents are held out."""

import math
from collections import Counter, defaultdict
from itertools import count

import pytest

from moray.corpus.document import Document
from moray.corpus.split import by_hash, by_tail


def hashed(
    documents: list[Document], validation: float = 0.2, test: float = 0.2
) -> list[tuple[str, Document]]:
    return list(by_hash(documents.__iter__, validation, test))


def group_in(split: str) -> str:
    """A group that falls into a split."""
    for number in count():
        group = f"group {number}"
        if hashed([Document(text="probe", group=group)])[0][0] == split:
            return group
    raise AssertionError


def test_a_document_keeps_its_split_when_data_is_added() -> None:
    few = [Document(text=f"text {number}") for number in range(0, 300, 3)]
    many = [Document(text=f"text {number}") for number in range(300)]
    before = {document["text"]: split for split, document in hashed(few)}
    after = {document["text"]: split for split, document in hashed(many)}
    assert set(before.values()) == {"train", "validation", "test"}
    assert before.items() <= after.items()


def test_a_group_keeps_its_split_when_its_documents_change() -> None:
    for number in range(20):
        splits = {
            split
            for text in ("a", "b", "c")
            for split, _ in hashed([Document(text=text, group=f"group {number}")])
        }
        assert len(splits) == 1


def test_groups_stay_together() -> None:
    rows = [Document(text=f"text {i}", group=f"group {i % 40}") for i in range(400)]
    splits, sizes = defaultdict(set), Counter[str]()
    for split, document in hashed(rows):
        splits[document["group"]].add(split)
        sizes[document["group"]] += 1
    assert all(len(found) == 1 for found in splits.values())
    assert set(sizes.values()) == {10}
    assert {split for found in splits.values() for split in found} == {
        "train",
        "validation",
        "test",
    }


@pytest.mark.parametrize(("validation", "test"), [(0.05, 0.05), (0.3, 0.1), (0.0, 0.5)])
def test_splits_have_their_shares(validation: float, test: float) -> None:
    total = 4000
    rows = [Document(prompt=f"prompt {i}", completion="same") for i in range(total)]
    got = Counter(split for split, _ in hashed(rows, validation, test))
    assert got.total() == total
    for split, share in (("validation", validation), ("test", test)):
        spread = math.sqrt(total * share * (1 - share))
        assert got[split] == pytest.approx(total * share, abs=4 * spread)


def test_every_document_is_in_one_split_and_order_is_kept() -> None:
    rows = [Document(text=f"text {number}") for number in range(100)]
    assert [document for _, document in hashed(rows)] == rows


@pytest.mark.parametrize(
    ("copies", "kept"),
    [
        (["train", "validation", "test"], ["test"]),
        (["test", "train", "test"], ["test"]),
        (["validation", "train"], ["validation"]),
        (["train", "validation", "validation"], ["validation"]),
        (["train", "train"], ["train", "train"]),
    ],
)
def test_of_exact_duplicates_test_comes_before_validation_before_train(
    copies: list[str], kept: list[str]
) -> None:
    rows = [Document(text="the same", group=group_in(split)) for split in copies]
    alone = Document(text="another", group=group_in("train"))
    assert [split for split, _ in hashed([*rows, alone])] == [*kept, "train"]


def test_a_prompt_with_another_completion_is_no_duplicate() -> None:
    rows = [
        Document(prompt="a", completion="bc", group=group_in("train")),
        Document(prompt="ab", completion="c", group=group_in("test")),
    ]
    assert [split for split, _ in hashed(rows)] == ["train", "test"]


TEXTS = ["", "abcdefghij", "é🐍" * 15, "k", "lmnop" * 7, "\n"]


@pytest.mark.parametrize(
    ("validation", "test"), [(0.1, 0.1), (0.0, 0.25), (0.25, 0.0), (0.33, 0.33), (0.001, 0.001)]
)
def test_the_tail_is_held_out_and_nothing_is_lost(validation: float, test: float) -> None:
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    order = []
    for split, document in by_tail([Document(text=t) for t in TEXTS].__iter__, validation, test):
        parts[split].append(document["text"])
        order.append(split)
    joined = {split: "".join(found) for split, found in parts.items()}
    whole = "".join(TEXTS)
    assert joined["train"] + joined["validation"] + joined["test"] == whole
    assert order == sorted(order, key=["train", "validation", "test"].index)
    assert len(joined["test"]) == pytest.approx(test * len(whole), abs=1)
    assert len(joined["validation"]) == pytest.approx(validation * len(whole), abs=1)


def test_a_document_across_a_boundary_is_cut_there_and_others_stay_whole() -> None:
    rows = [Document(text="a" * 6), Document(text="b" * 3), Document(text="c")]
    got = [(split, row["text"]) for split, row in by_tail(rows.__iter__, 0.2, 0.3)]
    assert got == [
        ("train", "aaaaa"),
        ("validation", "a"),
        ("validation", "b"),
        ("test", "bb"),
        ("test", "c"),
    ]


def test_a_single_text_can_fill_all_splits() -> None:
    rows = [Document(text="0123456789")]
    got = [(split, row["text"]) for split, row in by_tail(rows.__iter__, 0.2, 0.1)]
    assert got == [("train", "0123456"), ("validation", "78"), ("test", "9")]
