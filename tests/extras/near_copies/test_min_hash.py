"""Near copies, held against the share of runs of words that two texts have in common."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from moray.corpus.copies import Copy
from moray.corpus.dataset import Document, content, digest
from moray.extras.near_copies.min_hash import NearCopies, sketches

WORDS = [f"w{number}" for number in range(500)]


def found(folder: Path, rows: list[tuple[str, Document]]) -> list[int]:
    copies = NearCopies(folder)
    for some in (rows[:3], rows[3:]):
        documents = [row for _, row in some]
        is_train = np.array([split == "train" for split, _ in some], np.bool_)
        identities = np.array([digest(content(row)) for row in documents], "S16")
        hashes = sketches(documents)
        copies.note(is_train, identities, hashes.view(f"S{4 * hashes.shape[1]}")[:, 0])
    kinds: list[int] = copies.find().tolist()
    return kinds


def text_of(draw: random.Random, count: int = 200) -> list[str]:
    return draw.choices(WORDS, k=count)


def edited(draw: random.Random, words: list[str], edits: int) -> list[str]:
    """A text with other words in some places."""
    copy = list(words)
    for place in draw.sample(range(len(copy)), edits):
        copy[place] = "other"
    return copy


def shared(one: list[str], other: list[str]) -> float:
    """The share of the runs of five words in two texts that are in both (Jaccard, 1901)."""
    first, second = (
        {tuple(words[place : place + 5]) for place in range(len(words) - 4)}
        for words in (one, other)
    )
    return len(first & second) / len(first | second)


def test_texts_that_share_most_of_their_words_are_copies(tmp_path: Path) -> None:
    """From nine tenths on, nearly all; up to six tenths, nearly none; others are unrelated."""
    draw = random.Random(0)
    rows, shares = [], []
    for number in range(600):
        words = text_of(draw)
        other = edited(draw, words, number % 20)
        rows += [words, other]
        shares.append(shared(words, other))
    kinds = found(tmp_path, [("train", Document(text=" ".join(words))) for words in rows])
    assert set(kinds[::2]) == {Copy.NONE}
    of_near = [kind for kind, share in zip(kinds[1::2], shares, strict=True) if 0.9 <= share < 1]
    of_far = [kind for kind, share in zip(kinds[1::2], shares, strict=True) if share <= 0.6]
    assert len(of_near) > 50 < len(of_far)
    assert sum(kind == Copy.NEAR for kind in of_near) >= 0.98 * len(of_near)
    assert sum(kind == Copy.NEAR for kind in of_far) <= 0.02 * len(of_far)
    of_equal = [kind for kind, share in zip(kinds[1::2], shares, strict=True) if share == 1]
    assert set(of_equal) == {Copy.EXACT}


def test_near_copies_of_held_out_rows_are_so_wherever_they_are(tmp_path: Path) -> None:
    draw = random.Random(1)
    held_out, repeated = text_of(draw), text_of(draw)
    rows = [
        ("train", edited(draw, held_out, 1)),
        ("train", repeated),
        ("validation", held_out),
        ("train", edited(draw, repeated, 1)),
        ("test", edited(draw, held_out, 1)),
        ("train", edited(draw, held_out, 1)),
        ("train", text_of(draw)),
    ]
    documents = [(split, Document(text=" ".join(words))) for split, words in rows]
    of_held_out = Copy.NEAR_HELD_OUT
    expected = [of_held_out, Copy.NONE, Copy.NEAR, of_held_out, Copy.NONE]
    assert found(tmp_path, documents) == expected


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("To be, or not to be.", "to BE or not\n to be", Copy.NEAR),
        ("yes", "no", Copy.NONE),
        ("∀∃", "∃∀", Copy.NONE),
        (
            "吾輩は猫である。名前はまだ無い。" * 3,
            "吾輩は猫である。 名前は、まだ無い。" * 3,
            Copy.NEAR,
        ),
        ("吾輩は猫である。名前はまだ無い。", "吾輩は犬である。住所はもう有る。", Copy.NONE),
        ("ฉันชอบแมวมากที่สุด", "ฉันชอบ แมวมากที่สุด", Copy.NEAR),
    ],
    ids=["case and marks", "a word", "no words", "without spaces", "other characters", "Thai"],
)
def test_words_count_whatever_is_between_them(
    one: str, other: str, kind: Copy, tmp_path: Path
) -> None:
    rows = [("train", Document(text=one)), ("train", Document(text=other))]
    assert found(tmp_path, rows) == [Copy.NONE, kind]


def test_conversations_that_share_a_system_prompt_are_not_copies(tmp_path: Path) -> None:
    draw = random.Random(2)
    system = " ".join(text_of(draw, 400))

    def talk(words: list[str]) -> Document:
        turns = [("system", system), ("user", "Hi"), ("assistant", " ".join(words))]
        messages = [{"role": role, "content": content} for role, content in turns]
        return Document(messages=json.dumps(messages), tools=None)

    words = text_of(draw)
    talks = [talk(words), talk(text_of(draw)), talk(edited(draw, words, 1))]
    kinds = found(tmp_path, [("train", one) for one in talks])
    assert kinds == [Copy.NONE, Copy.NONE, Copy.NEAR]


def test_nothing_has_no_copies(tmp_path: Path) -> None:
    assert found(tmp_path, []) == []
    assert found(tmp_path, [("test", Document(text="a"))]) == []
