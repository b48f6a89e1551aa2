"""Which documents are held out."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import count

import pytest
from divided import divide_by_hash, divide_by_tail

from moray.corpus.dataset import SPLITS, Document
from moray.corpus.split import Counts


def hashed(
    documents: list[Document],
    validation: float = 0.2,
    test: float = 0.2,
    given: Mapping[str, list[Document]] | None = None,
    dropped: Counter[str] | None = None,
    blanks: Counter[str] | None = None,
    related: Counter[str] | None = None,
) -> list[tuple[str, Document]]:
    """By the hash of what train has, beside splits that are given."""
    copies, empty, near = (
        Counter[str]() if one is None else one for one in (dropped, blanks, related)
    )
    counts = Counts(copies, empty, near)
    return divide_by_hash({"train": documents, **(given or {})}, validation, test, counts)


def tailed(
    documents: list[Document],
    validation: float,
    test: float,
    given: Mapping[str, list[Document]] | None = None,
    blanks: Counter[str] | None = None,
) -> list[tuple[str, Document]]:
    counts = Counts(blanks=Counter[str]() if blanks is None else blanks)
    return divide_by_tail({"train": documents, **(given or {})}, validation, test, counts)


def texts(*names: str) -> list[Document]:
    return [Document(text=name) for name in names]


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


def conversation(prompt: str, answer: str) -> Document:
    turns = [
        ("system", "s"),
        ("user", prompt),
        ("assistant", answer),
        ("user", "x"),
        ("assistant", "y"),
    ]
    messages = json.dumps([{"role": role, "content": said} for role, said in turns])
    return Document(messages=messages, tools=None)


SHARED: dict[str, Callable[[str, str], Document]] = {
    "completions": lambda prompt, answer: Document(prompt=prompt, completion=answer),
    "pairs": lambda prompt, answer: Document(
        prompt=prompt, chosen=answer, rejected=f"not {answer}", tools=None
    ),
    "conversations": conversation,
    "pairs of conversations": lambda prompt, answer: Document(
        chosen=conversation(prompt, answer)["messages"],
        rejected=conversation(prompt, f"not {answer}")["messages"],
        tools=None,
    ),
}


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize(("prompts", "answers"), [(300, 4), (40, 4)])
def test_what_answers_the_same_prompt_is_in_one_split(
    kind: str, prompts: int, answers: int
) -> None:
    splits: dict[int, set[str]] = defaultdict(set)
    for number in range(prompts):
        rows = [SHARED[kind](f"prompt {number}", f"answer {i}") for i in range(answers)]
        splits[number].update(split for split, _ in hashed(rows))
    assert all(len(found) == 1 for found in splits.values())
    assert set().union(*splits.values()) == {"train", "validation", "test"}


def said(*turns: tuple[str, str]) -> Document:
    messages = [{"role": role, "content": text} for role, text in turns]
    return Document(messages=json.dumps(messages), tools=None)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Document(prompt="", completion=f"answer {n}"),
        lambda n: Document(prompt="", chosen=f"answer {n}", rejected="no", tools=None),
        lambda n: said(("system", "s"), ("assistant", f"answer {n}")),
        lambda n: said(("assistant", "Hello!"), ("user", f"question {n}"), ("assistant", "yes")),
    ],
    ids=["completions", "pairs", "nobody asks", "the assistant begins"],
)
def test_rows_that_share_no_question_do_not_belong_together(
    make: Callable[[int], Document],
) -> None:
    assert {split for split, _ in hashed([make(n) for n in range(100)])} == set(SPLITS)


def test_blank_texts_are_dropped_and_counted() -> None:
    rows = texts("a", "", "b", " \n\t", "c")
    blanks: Counter[str] = Counter()
    found = hashed(rows, given={"test": texts("d", "\n")}, blanks=blanks)
    assert [document["text"] for _, document in found] == ["a", "b", "c", "d"]
    assert blanks.total() == 3
    assert blanks["test"] >= 1


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
    dropped: Counter[str] = Counter()
    assert [split for split, _ in hashed([*rows, alone], dropped=dropped)] == [*kept, "train"]
    assert dropped == Counter(copies) - Counter(kept)


def test_a_prompt_with_another_completion_is_no_duplicate() -> None:
    rows = [
        Document(prompt="a", completion="bc", group=group_in("train")),
        Document(prompt="ab", completion="c", group=group_in("test")),
    ]
    assert [split for split, _ in hashed(rows)] == ["train", "test"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_given_split_keeps_its_rows_and_train_loses_its_copies_of_them(split: str) -> None:
    given = {split: texts("a", "b", "c", "a")}
    dropped: Counter[str] = Counter()
    found = hashed(texts("b", "x", "y", "b", "x"), 0, 0, given, dropped)
    assert [row["text"] for of, row in found if of == split] == ["a", "b", "c"]
    assert [row["text"] for of, row in found if of == "train"] == ["x", "y", "x"]
    assert dropped == {"train": 2, split: 1}


def test_of_copies_in_given_splits_test_keeps_its_own() -> None:
    dropped: Counter[str] = Counter()
    given = {"validation": texts("a", "v"), "test": texts("a", "t")}
    found = hashed(texts("a", "v", "t", "x"), 0, 0, given, dropped)
    assert [(split, row["text"]) for split, row in found] == [
        ("train", "x"),
        ("validation", "v"),
        ("test", "a"),
        ("test", "t"),
    ]
    assert dropped == {"train": 3, "validation": 1}


def test_a_split_that_is_given_takes_nothing_from_train_and_the_other_its_share() -> None:
    train, test = texts(*map(str, range(1000))), texts("t", "u")
    found = hashed(train, 0.2, 0, {"test": test})
    assert [row for split, row in found if split == "test"] == test
    sizes = Counter(split for split, _ in found)
    assert sizes["validation"] == pytest.approx(200, abs=4 * math.sqrt(160))
    assert sizes.total() == 1002
    # Train is divided as if there were no given split.
    assert [row for row in found if row[0] != "test"] == hashed(train, 0.2, 0)


def test_documents_of_a_given_split_stay_there_whatever_their_group() -> None:
    rows = [Document(text=f"text {i}", group=f"group {i % 9}") for i in range(90)]
    found = hashed([], 0.3, 0.3, given={"test": rows})
    assert found == [("test", row) for row in rows]


def test_held_out_rows_of_the_source_that_share_a_prompt_with_train_are_counted() -> None:
    def answer(prompt: str, completion: str) -> Document:
        return Document(prompt=prompt, completion=completion)

    train = [answer("a", "1"), answer("a", "2"), answer("b", "1"), answer("c", "1")]
    # The only row of train with the second prompt is left out, as a copy.
    test = [answer("a", "3"), answer("a", "4"), answer("b", "1"), answer("b", "2")]
    validation = [answer("c", "2"), answer("d", "1")]
    related: Counter[str] = Counter()
    hashed(train, 0, 0, {"test": test, "validation": validation}, related=related)
    assert related == {"test": 2, "validation": 1}


def test_conversations_are_copies_if_messages_and_tools_are() -> None:
    talk = Document(messages='[{"role": "assistant", "content": "a"}]', tools=None)
    other = Document(messages=talk["messages"], tools='[{"name": "f"}]')
    dropped: Counter[str] = Counter()
    found = hashed([talk, other], 0, 0, {"test": [Document(**talk)]}, dropped)
    assert found == [("train", other), ("test", talk)]
    assert dropped == {"train": 1}


TEXTS = ["", "abcdefghij", "é🐍" * 15, "k", "lmnop" * 7, "\n"]


@pytest.mark.parametrize(
    ("validation", "test"), [(0.1, 0.1), (0.0, 0.25), (0.25, 0.0), (0.33, 0.33), (0.001, 0.001)]
)
def test_the_tail_is_held_out_and_nothing_but_blanks_is_lost(
    validation: float, test: float
) -> None:
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    order = []
    blanks: Counter[str] = Counter()
    for split, document in tailed(texts(*TEXTS), validation, test, blanks=blanks):
        parts[split].append(document["text"])
        order.append(split)
    joined = {split: "".join(found) for split, found in parts.items()}
    assert blanks.total() == 2
    whole = "".join(filter(str.strip, TEXTS))
    assert joined["train"] + joined["validation"] + joined["test"] == whole
    assert order == sorted(order, key=["train", "validation", "test"].index)
    assert len(joined["test"]) == pytest.approx(test * len(whole), abs=2)
    assert len(joined["validation"]) == pytest.approx(validation * len(whole), abs=2)


def test_what_a_cut_or_a_given_split_leaves_blank_is_dropped_too() -> None:
    blanks: Counter[str] = Counter()
    found = tailed(texts("abcdef  ", "gh"), 0, 0.4, {"validation": texts(" ", "v")}, blanks)
    got = [(split, row["text"]) for split, row in found]
    assert got == [("train", "abcdef"), ("test", "gh"), ("validation", "v")]
    assert blanks == {"test": 1, "validation": 1}


def test_a_document_across_a_boundary_is_cut_there_and_others_stay_whole() -> None:
    rows = [Document(text="a" * 6), Document(text="b" * 3), Document(text="c")]
    got = [(split, row["text"]) for split, row in tailed(rows, 0.2, 0.3)]
    assert got == [
        ("train", "aaaaa"),
        ("validation", "a"),
        ("validation", "b"),
        ("test", "bb"),
        ("test", "c"),
    ]


def test_a_single_text_can_fill_all_splits() -> None:
    rows = [Document(text="0123456789")]
    got = [(split, row["text"]) for split, row in tailed(rows, 0.2, 0.1)]
    assert got == [("train", "0123456"), ("validation", "78"), ("test", "9")]


def test_a_given_split_comes_beside_the_tail_of_train() -> None:
    found = tailed(texts("01234", "56789"), 0.2, 0, {"test": texts("abc", "d")})
    got = [(split, row["text"]) for split, row in found]
    assert got == [
        ("train", "01234"),
        ("train", "567"),
        ("validation", "89"),
        ("test", "abc"),
        ("test", "d"),
    ]
