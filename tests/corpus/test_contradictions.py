"""Equal rows that are judged in different ways are counted and named."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from divided import stage_rows

from moray.corpus.contradictions import Contradictions
from moray.corpus.dataset import Document
from moray.stages.download import download


def said(rows: list[Document], test: list[Document] | None = None) -> list[str]:
    """What is said of rows of train, of which some are held out, or beside a test split."""
    splits = {"train": rows} if test is None else {"train": rows, "test": test}
    with stage_rows(splits, 0.2, 0.3 if test is None else 0.0) as staged:
        return [*Contradictions(staged).lines("mine")]


def talk(answer: str) -> str:
    return json.dumps([{"role": "user", "content": "é?"}, {"role": "assistant", "content": answer}])


KEPT = "validation and test keep the first of each"
EQUAL: Mapping[str, tuple[Document, Document, str]] = {
    "text": (
        Document(text="fine", text_pair="it", label="good"),
        Document(text="fine", text_pair="it", label="bad"),
        f"texts are there with different labels, such as 'fine\\nit'; {KEPT}",
    ),
    "words": (
        Document(tokens='["Ada", "ran"]', tags='["B-PER", "O"]'),
        Document(tokens='["Ada", "ran"]', tags='["O", "O"]'),
        f"texts are there with different tags, such as 'Ada ran'; {KEPT}",
    ),
    "answer": (
        Document(prompt="a", completion="b" * 50, tools=None, label=True),
        Document(prompt="a", completion="b" * 50, tools=None, label=False),
        f"answers are there with different labels, such as 'a{'b' * 39}…'; {KEPT}",
    ),
    "spoken answer": (
        Document(completion=talk("b"), tools=None, label=True),
        Document(completion=talk("b"), tools=None, label=False),
        f"answers are there with different labels, such as 'é?\\nb'; {KEPT}",
    ),
    "pair": (
        Document(prompt="a", chosen="b", rejected="c", tools=None),
        Document(prompt="a", chosen="c", rejected="b", tools=None),
        "pairs are there with either answer as the chosen one, such as 'ac\\nab'; all are kept",
    ),
    "image": (
        Document(image=b"\xff\0", label=0, place="a.png"),
        Document(image=b"\xff\0", label=1, place="b.png"),
        f"images are there with different labels, such as b.png; {KEPT}",
    ),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_rows_of_other_labels_are_named(kind: str) -> None:
    one, other, text = EQUAL[kind]
    # Three rows of one content, and two that are equal in all.
    assert said([one, other, one]) == [f"dataset mine: 1 {text}"]
    assert said([one, one]) == []
    assert said([one], [other]) == [f"dataset mine: 1 {text}"]


def test_rows_without_labels_contradict_nothing() -> None:
    rows = [Document(prompt="a", completion="b"), Document(prompt="a", completion="c")]
    assert said(rows) == said([Document(text="a"), Document(text="a")]) == []
    pairs = [Document(prompt=p, chosen="b", rejected="c", tools=None) for p in "aé"]
    other = Document(prompt="x", chosen="c", rejected="b", tools=None)
    assert said([*pairs, other]) == []


def test_the_download_says_how_many_there_are(tmp_path: Path, capsys: Any) -> None:
    rows = [{"text": f"text {n}", "label": str(n % 3)} for n in range(60)]
    # Every third row again, with another label in half of these.
    again = [{**row, "label": "0" if n % 2 else row["label"]} for n, row in enumerate(rows[1::3])]
    assert sum(row != rows[1 + 3 * n] for n, row in enumerate(again)) == 10
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows + again))
    keys = {"validation_share": 0.2, "test_share": 0.2, "format": "classification"}
    cfg = {"source": "files", "path": str(path), **keys}
    download(tmp_path / "dataset", cfg, {"train": [str(path)]})
    line = "dataset dataset: 10 texts are there with different labels, such as 'text "
    assert line in capsys.readouterr().err


def test_only_the_first_rows_of_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moray.corpus.contradictions._MOST_ROWS", 2)
    rows = [Document(text=text, label=label) for label in ("yes", "no") for text in "abc"]
    (line,) = said(rows)
    assert line.startswith("dataset mine: 2 texts are there with different labels")
