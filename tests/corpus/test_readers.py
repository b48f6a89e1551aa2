"""Files: what is read of them, and what is said of those that can't be."""

import json
from pathlib import Path

import pytest
from tables import BOM, pack, write

from moray.corpus.document import Document
from moray.corpus.formats import Shape
from moray.corpus.readers import documents

TEXT = Shape("text")
TEXTS = ["plain", 'two\nlines, a comma and "quotes"', "é 🐍", "", "NA", "007", "  spaces  "]
PAIRS = [(text, text[::-1]) for text in TEXTS]
TABLES = [".jsonl", ".json", ".csv", ".parquet"]
PACKED = ["", ".gz", ".zst"]
ENDINGS = [*(f"{kind}{packed}" for kind in TABLES[:3] for packed in PACKED), ".parquet"]


def texts(*files: Path) -> list[str]:
    return [row["text"] for row in documents([*files], TEXT)]


def test_a_table_gives_a_document_a_row(tmp_path: Path) -> None:
    for ending in ENDINGS:
        path = write(tmp_path / f"rows{ending}", {"other": ["x"] * len(TEXTS), "text": TEXTS})
        found = list(documents([path], TEXT))
        assert found == [Document(text=text) for text in TEXTS], ending


def test_a_table_of_pairs_under_other_names(tmp_path: Path) -> None:
    expected = [Document(prompt=prompt, completion=completion) for prompt, completion in PAIRS]
    shape = Shape("prompt-completion", {"completion": "answer"})
    for ending in TABLES:
        path = tmp_path / f"rows{ending}"
        write(path, {"answer": [c for _, c in PAIRS], "prompt": [p for p, _ in PAIRS]})
        assert list(documents([path], shape)) == expected, ending


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".parquet"])
def test_a_table_of_conversations(tmp_path: Path, ending: str) -> None:
    plain = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]
    calls = [{"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    calling = [plain[0], {"role": "assistant", "content": None, "tool_calls": calls}]
    path = write(tmp_path / f"rows{ending}", {"messages": [plain, calling]})
    first, second = documents([path], Shape("messages"))
    assert json.loads(first["messages"]) == plain
    assert json.loads(second["messages"])[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_a_table_of_more_rows_than_are_held_at_a_time(tmp_path: Path) -> None:
    many = [f"text {number}" for number in range(2500)]
    assert texts(write(tmp_path / "rows.parquet", {"text": many})) == many


@pytest.mark.parametrize("packed", PACKED)
def test_a_text_file_is_one_document_to_the_byte(tmp_path: Path, packed: str) -> None:
    content = "first\r\nsecond 🐍\f\n\n"
    assert texts(pack(tmp_path / f"a.txt{packed}", content.encode())) == [content]


@pytest.mark.parametrize("packed", PACKED)
def test_a_large_text_file_is_several_documents_of_whole_lines(tmp_path: Path, packed: str) -> None:
    content = "".join(f"é {number} 🐍\n" * 5 for number in range(120_000))
    found = texts(pack(tmp_path / f"a.txt{packed}", content.encode()))
    assert "".join(found) == content
    assert [len(text.encode()) // 2**20 for text in found] == [4, 4, 0]
    assert all(text.endswith("\n") for text in found)


def test_a_line_is_never_cut_however_long(tmp_path: Path) -> None:
    content = "é" * 5 * 2**20
    assert texts(pack(tmp_path / "a.txt", content.encode())) == [content]


def test_files_as_people_have_them(tmp_path: Path) -> None:
    files = [
        ("a.json", '{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
        ("a.json", ' \n[{"text": "a"},\n {"text": "b"}]', ["a", "b"]),
        ("a.json", "[]", []),
        ("a.json", "", []),
        ("a.jsonl", "", []),
        ("a.jsonl", '\n{"text": "a"}\n  \n\r\n{"text": "b"}', ["a", "b"]),
        ("a.jsonl", '{"text": "a\u2028\\n"}\r\n{"text": "b"}\r\n', ["a\u2028\n", "b"]),
        ("a.csv", "text\n1\n002\n3.50\n", ["1", "002", "3.50"]),
        ("a.csv", 'n,text\r\n1,"a\nb, ""c"""\r\n2,d\r\n', ['a\nb, "c"', "d"]),
        ("a.csv", "text\na\n\nb\n", ["a", "b"]),
        ("a.csv", "text\n" + "long " * 50_000, ["long " * 50_000]),
        ("a.csv", "text\n", []),
        *(
            (name, BOM + content, ["a", f"b{BOM}"])
            for name, content in [
                ("a.csv", f"text\na\nb{BOM}\n"),
                ("a.jsonl", f'{{"text": "a"}}\n{{"text": "b{BOM}"}}\n'),
                ("a.json", f'{{"text": "a"}}\n{{"text": "b{BOM}"}}\n'),
                ("a.json", f'[{{"text": "a"}}, {{"text": "b{BOM}"}}]'),
            ]
        ),
        ("a.txt", f"{BOM}a{BOM}", [f"a{BOM}"]),
        ("a.csv", f"text\na\n{BOM}b\n", ["a", f"{BOM}b"]),
        ("a.txt", "", []),
    ]
    for name, content, expected in files:
        found = texts(pack(tmp_path / name, content.encode()))
        assert found == expected, (name, content[:60])


def test_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    one = pack(tmp_path / "b.txt", b"b")
    other = write(tmp_path / "a.jsonl", {"text": ["a1", "a2"]})
    assert texts(one, other, one) == ["b", "a1", "a2", "b"]


@pytest.mark.parametrize(("name", "also_matches"), [("a[1]", "a1"), ("a*", "ab"), ("a?", "ab")])
def test_a_file_name_is_no_pattern(tmp_path: Path, name: str, also_matches: str) -> None:
    wanted = write(tmp_path / f"{name}.jsonl", {"text": ["wanted"]})
    write(tmp_path / f"{also_matches}.jsonl", {"text": ["another file's"]})
    assert texts(wanted) == ["wanted"]


def test_reading_local_files_asks_nothing_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *host, **_: asked.append(host))
    for ending in ENDINGS:
        assert texts(write(tmp_path / f"a{ending}", {"text": ["a"]})) == ["a"]
    assert asked == []


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {"text": ["a"]})
    first.write_text(first.read_text() + "no JSON")
    rows = documents([first, tmp_path / "missing.txt"], TEXT)
    assert next(rows) == Document(text="a")
