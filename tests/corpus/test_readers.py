"""Local files: what is read of them, and what is said of those that can't be."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moray.corpus.document import Document
from moray.corpus.files import documents
from moray.errors import UserError

TEXTS = ["plain", 'two\nlines, a comma and "quotes"', "é 🐍", "", "NA", "007", "  spaces  "]
PAIRS = [(text, text[::-1]) for text in TEXTS]


def write(path: Path, columns: dict[str, list[str]]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    else:
        quoted = ((f'"{v.replace(chr(34), chr(34) * 2)}"' for v in row.values()) for row in rows)
        path.write_text("".join(f"{','.join(line)}\n" for line in (columns, *quoted)))


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_table_gives_a_document_a_row(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows{ending}"
    write(path, {"other": ["x"] * len(TEXTS), "text": TEXTS})
    assert list(documents([path], "text")) == [Document(text=text) for text in TEXTS]


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_table_of_pairs(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows{ending}"
    write(path, {"completion": [c for _, c in PAIRS], "prompt": [p for p, _ in PAIRS]})
    expected = [Document(prompt=prompt, completion=completion) for prompt, completion in PAIRS]
    assert list(documents([path], "prompt-completion")) == expected


def test_a_column_of_digits_in_a_csv_is_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text\n1\n002\n3.50\n")
    assert [row["text"] for row in documents([path], "text")] == ["1", "002", "3.50"]


def test_a_text_file_is_one_document_to_the_byte(tmp_path: Path) -> None:
    content = "\N{BYTE ORDER MARK}first\r\nsecond 🐍\f\n\n"
    (tmp_path / "a.txt").write_bytes(content.encode())
    assert list(documents([tmp_path / "a.txt"], "text")) == [Document(text=content)]


def test_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b")
    write(tmp_path / "a.jsonl", {"text": ["a1", "a2"]})
    paths = [tmp_path / "b.txt", tmp_path / "a.jsonl", tmp_path / "b.txt"]
    assert [row["text"] for row in documents(paths, "text")] == ["b", "a1", "a2", "b"]


@pytest.mark.parametrize(("name", "also_matches"), [("a[1]", "a1"), ("a*", "ab"), ("a?", "ab")])
def test_a_file_name_is_no_pattern(tmp_path: Path, name: str, also_matches: str) -> None:
    write(tmp_path / f"{name}.jsonl", {"text": ["wanted"]})
    write(tmp_path / f"{also_matches}.jsonl", {"text": ["another file's"]})
    found = list(documents([tmp_path / f"{name}.jsonl"], "text"))
    assert [row["text"] for row in found] == ["wanted"]


def test_reading_local_files_asks_nothing_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *host, **_: asked.append(host))
    for ending in (".jsonl", ".json", ".csv", ".parquet"):
        write(tmp_path / f"a{ending}", {"text": ["a"]})
        assert list(documents([tmp_path / f"a{ending}"], "text")) == [Document(text="a")]
    assert asked == []


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"text": ["a"]})
    rows = documents([tmp_path / "a.jsonl", tmp_path / "missing.txt"], "text")
    assert next(rows) == Document(text="a")


@pytest.mark.parametrize(
    ("name", "content", "format", "problem"),
    [
        ("a.txt", b"ok \xc3\xa9 then \xff", "text", "got invalid UTF-8 at byte 11"),
        ("a.txt", b"text", "prompt-completion", "got a .txt file for prompt-completion"),
        ("a.md", b"text", "text", "got the ending '.md', expected .txt or .csv, .json, .jsonl"),
        ("a", b"text", "text", "got the ending ''"),
        ("a.csv", b"body,title\nx,y\n", "text", "got columns body, title, expected text"),
        (
            "a.jsonl",
            b'{"prompt": "x", "answer": "y"}\n',
            "prompt-completion",
            "got columns prompt, answer, expected completion",
        ),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"text": 3}\n',
            "text",
            "got int in column text of row 2, expected text",
        ),
        (
            "a.jsonl",
            b'{"text": "x", "n": 1}\n{"n": 2}\n',
            "text",
            "got nothing in column text of row 2, expected text",
        ),
        ("a.jsonl", b'{"text": "x"}\n{"text"', "text", "got an unreadable .jsonl file"),
        ("a.jsonl", b'{"text": "\xff"}\n', "text", "got an unreadable .jsonl file"),
        ("a.jsonl", b"", "text", "got an unreadable .jsonl file"),
        ("a.csv", b"text\n\xff\n", "text", "got an unreadable .csv file"),
        ("a.parquet", b"PAR1 and no more", "text", "got an unreadable .parquet file"),
    ],
)
def test_a_file_that_cannot_be_used_costs_one_line_with_its_name(
    tmp_path: Path, name: str, content: bytes, format: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(documents([path], format))
    line = str(caught.value)
    assert line.startswith(f"{path}: {problem}")
    assert "\n" not in line


@pytest.mark.parametrize("name", ["missing.txt", "missing.jsonl", "missing.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        list(documents([tmp_path / name], "text"))
    assert str(caught.value).startswith(f"{tmp_path / name}: got an unreadable")
