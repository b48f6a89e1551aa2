"""Files: what is read of them, and what is said of those that can't be."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from read_parts import documents, documents_in

from moray.config.schema.datasets import LocalFiles
from moray.config.tasks import FormatName
from moray.corpus.dataset import Document
from moray.corpus.findings import Findings
from moray.errors import UserError
from moray.tasks.language.formats import Shape
from moray.tasks.language.sources.files import open_source

BOM = "\N{BYTE ORDER MARK}"
TEXT = Shape("text")
TEXTS = ["plain", 'two\nlines, a comma and "quotes"', "é 🐍", "", "NA", "007", "  spaces  "]
PAIRS = [(text, f"{text[::-1]}.") for text in TEXTS]
TABLES = [".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"]
PACKED = ["", ".gz", ".zst"]
ENDINGS = [*(f"{kind}{packed}" for kind in TABLES[:-1] for packed in PACKED), ".parquet"]


def pack(path: Path, content: bytes) -> Path:
    """Write a file, compressed by something else than what reads it where that is there."""
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write a table as a file of the type that its name says."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    kind = path.suffixes[0]
    if kind == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    if kind == ".json":
        content = json.dumps(rows, indent=1)
    elif kind in (".jsonl", ".ndjson"):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        quoted = ((f'"{v.replace(chr(34), chr(34) * 2)}"' for v in row.values()) for row in rows)
        between = "\t" if kind == ".tsv" else ","
        content = "".join(f"{between.join(line)}\n" for line in (columns, *quoted))
    return pack(path, content.encode())


def documents_of(files: list[Path], shape: Shape) -> Iterator[Document]:
    return documents({str(file): file for file in files}, shape)


def texts(*files: Path) -> list[str]:
    return [row["text"] for row in documents_of([*files], TEXT)]


def fault(file: Path, shape: Shape = TEXT) -> str:
    """The line that a file costs."""
    with pytest.raises(UserError) as caught:
        pytest.fail(f"{file} is read as {list(documents_of([file], shape))[:2]}")
    return str(caught.value)


def test_a_table_gives_a_document_a_row(tmp_path: Path) -> None:
    for ending in ENDINGS:
        path = write(tmp_path / f"rows{ending}", {"other": ["x"] * len(TEXTS), "text": TEXTS})
        found = list(documents_of([path], TEXT))
        assert found == [Document(text=text) for text in TEXTS], ending


def test_a_table_of_pairs_under_other_names(tmp_path: Path) -> None:
    expected = [Document(prompt=prompt, completion=completion) for prompt, completion in PAIRS]
    shape = Shape("prompt-completion", {"completion": "answer"})
    for ending in TABLES:
        path = tmp_path / f"rows{ending}"
        write(path, {"answer": [c for _, c in PAIRS], "prompt": [p for p, _ in PAIRS]})
        assert list(documents_of([path], shape)) == expected, ending


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".parquet"])
def test_a_table_of_conversations(tmp_path: Path, ending: str) -> None:
    plain = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]
    calls = [{"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    calling = [plain[0], {"role": "assistant", "content": None, "tool_calls": calls}]
    path = write(tmp_path / f"rows{ending}", {"messages": [plain, calling]})
    first, second = documents_of([path], Shape("messages"))
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
        ("a.csv", "text,,\na,,\n", ["a"]),
        ("a.tsv", 'n\ttext\r\n1\t"a\nb\t""c"""\r\n2\td, e\r\n', ['a\nb\t"c"', "d, e"]),
        ("a.ndjson", '\n{"text": "a"}\r\n{"text": "b"}', ["a", "b"]),
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


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # GLUE's: quotes are a part of the text, also those of three rows in a row.
        (
            ['1\t"It began', "2\tand went on", '3\tto the end"'],
            ['"It began', "and went on", 'to the end"'],
        ),
        (['1\t"Yes," she said', '2\t"No."'], ['"Yes," she said', '"No."']),
        (['1\t"No."', "2\tb", '3\ta 5" disk'], ['"No."', "b", 'a 5" disk']),
        (['1\t"a', '2\tb"', "3\tc\td"], None),  # two rows, and a bad one
        # As pandas and spreadsheets write them.
        (['1\t"say ""hi"""', "2\tb"], ['say "hi"', "b"]),
        (['1\t"a\tb"', "2\tc"], ["a\tb", "c"]),
        (['1\t"a', 'b"', "2\tc"], ["a\nb", "c"]),
        (['1\t"a"', '2\t"b"'], ["a", "b"]),
    ],
)
def test_quotes_of_a_tsv_file(tmp_path: Path, rows: list[str], expected: list[str] | None) -> None:
    path = pack(tmp_path / "a.tsv", "\n".join(["n\ttext", *rows, ""]).encode())
    if expected is None:
        assert fault(path) == (
            f"{path}, line 4: got more values than the header, which has 2; leave none out, and "
            "write no tabs in values"
        )
    else:
        assert texts(path) == expected


def test_a_header_in_quotes_has_values_in_quotes(tmp_path: Path) -> None:
    content = b'"n"\t"text"\n1\t"a"\n2\tb\n'
    assert texts(pack(tmp_path / "a.tsv", content)) == ["a", "b"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_endings_have_any_case(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a{ending}", {"text": ["a", "b"]})
    assert texts(path.rename(tmp_path / f"A{ending.upper()}")) == ["a", "b"]


def test_a_space_in_a_header_is_named(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.csv", b"prompt, completion\nwhat?, that\n")
    assert fault(path, Shape("prompt-completion")) == (
        f"{path}, line 2: got a column ' completion', expected completion; remove the spaces "
        "around the names in the header, and around values that don't begin with one"
    )


def test_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    one = pack(tmp_path / "b.txt", b"b")
    other = write(tmp_path / "a.jsonl", {"text": ["a1", "a2"]})
    assert texts(one, other) == ["b", "a1", "a2"]
    assert texts(other, one) == ["a1", "a2", "b"]


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
    rows = documents_of([first, tmp_path / "missing.txt"], TEXT)
    assert next(rows) == Document(text="a")


GZIPPED = gzip.compress(b'{"text": "a"}\n' * 9)
LINE = b'{"text": "x"}\n'
LINES = b"a line\n" * 700_000
LONG = b'{"text": "' + b"\xc3\xa9" * 100_000 + b'"}\n'
ROLES = "system, developer, user, human, assistant, gpt, function_call, tool, function, observation"
MAPPING = "expected a mapping of column names to values; fix it"
FILL = "write it as text, or remove the row"
BEGINNING = (
    "got the beginning of a JSON value, expected a whole one; write each row on one line, or all "
    "rows as a list in a .json file"
)
KINDS = ".txt, .jsonl, .ndjson, .json, .csv, .tsv, .parquet"
QUOTE = "put values that contain ',' in quotes, and leave none out"
NAME = "name it under columns, as in {output: answer}, or choose another format"

# A file and the line that it costs as text, after the name of the file.
BAD: list[tuple[str, bytes, str]] = [
    # Files that aren't what their ending says.
    (
        "a.parquet",
        b"PAR1 and no more than that",
        ": can't read the file (Parquet magic bytes not found in footer. Either the "
        "file is corrupted or this is not a parquet file.); check the file",
    ),
    (
        "a.jsonl.gz",
        GZIPPED[:-12],
        ": can't read the file (Truncated compressed stream); check the file",
    ),
    *(
        (
            f"a{ending}",
            b"text",
            f": got the extension {last!r}, expected {KINDS} (all but the last may be "
            "followed by .gz or .zst), or .xlsx; rename or convert the file",
        )
        for ending, last in [
            ("", ""),
            (".md", ".md"),
            (".gz", ".gz"),
            (".md.gz", ".gz"),
            (".parquet.gz", ".gz"),
        ]
    ),
    # Bytes that are no UTF-8, counted from the start of the file.
    *(
        (
            name,
            content,
            f": invalid UTF-8 at byte {content.index(bytes([255]))}; set encoding to "
            "that of the file, such as cp1252 (Windows), or convert the file to UTF-8",
        )
        for name, content in [
            ("a.txt", b"ok \xc3\xa9 then \xff"),
            ("a.txt", BOM.encode() + b"ok \xff"),
            ("a.txt", LINES + b"\xff"),
            ("a.jsonl", LINE + b'\n{"text": "\xff"}\n'),
            ("a.jsonl", LONG + LINE + b'{"text": "\xc3\xa9\xff"}\n'),
            ("a.json", LINE + b'{"text": "\xff"}\n'),
            ("a.json", b'[{"text": "x"}, {"text": "\xff"}]'),
            ("a.csv", b"text\nx\n\xff\n"),
            ("a.csv", BOM.encode() + b"te\xffxt\nx\n"),
        ]
    ),
    # Text that is no JSON, or JSON that is no row.
    ("a.jsonl", LINE + b'\n{"text"\n' + LINE, f", line 3: {BEGINNING}"),
    (
        "a.jsonl",
        LINE + LINE[:-3],
        ", line 2: invalid JSON (Unterminated string starting at); fix it",
    ),
    (
        "a.json",
        b'[\n {"text": "x"},\n {"text": x}\n]\n',
        ", line 3: invalid JSON (Expecting value); fix it",
    ),
    ("a.json", b'{\n "text": "x"\n}', f", line 1: {BEGINNING}"),
    ("a.jsonl", b'\n{"text": "x", \n "n": 1}\n', f", line 2: {BEGINNING}"),
    ("a.json", b'[{"text": "x"}', f", line 1: {BEGINNING}"),
    (
        "a.jsonl",
        LINE + b"{text: 1}\n",
        ", line 2: invalid JSON (Expecting property name enclosed in double quotes); fix it",
    ),
    ("a.jsonl", LINE + b"5\n", f", line 2: got int, {MAPPING}"),
    ("a.jsonl", b'\n["x"]\n', f", line 2: got list, {MAPPING}"),
    ("a.json", b'[{"text": "x"}, "x"]', f", entry 2: got str, {MAPPING}"),
    ("a.json", b'["x",\n\n5]', f", entry 1: got str, {MAPPING}"),
    # Bad CSV: quotes that don't end, or that end too early.
    ("a.csv", b'text\nx\n"y\nz\n', ", line 3: invalid CSV (unexpected end of data); fix the line"),
    ("a.csv", b'text\nx\n"y"z\n', ", line 3: invalid CSV (',' expected after '\"'); fix the line"),
    # Rows that are no documents, with their place.
    ("a.csv", b"body,title\nx,y\n", f", line 2: got columns body, title, expected text; {NAME}"),
    (
        "a.jsonl",
        LINE + b'\n{"text": 3}\n',
        f", line 3: got int in column text, expected text; {FILL}",
    ),
    (
        "a.json",
        b'[{"text": "x"}, {"text": null}]',
        f", entry 2: got nothing in column text, expected text; {FILL}",
    ),
    (
        "a.csv",
        b'text,n\n"x\ny",1\n"z\n',
        ", line 4: invalid CSV (unexpected end of data); fix the line",
    ),
    # Rows that don't fit their header: commas without quotes, or values that are missing.
    (
        "a.csv",
        b'n,text\n"1\n1",x\n2\n',
        f", line 4: got fewer values than the header, which has 2; {QUOTE}",
    ),
    (
        "a.csv",
        b"text\nHello\nHello, how are you?\n",
        f", line 3: got more values than the header, which has 1; {QUOTE}",
    ),
    (
        "a.csv",
        b"text,n\nHello,1\nHello, how, are you?,2\n",
        f", line 3: got more values than the header, which has 2; {QUOTE}",
    ),
    (
        "a.tsv",
        b"text\tn\nHello,\thow\tare you?\n",
        ", line 2: got more values than the header, which has 2; put values that contain '\\t' "
        "in quotes, and leave none out",
    ),
    ("a.csv", b'text\n"x\n', ", line 2: invalid CSV (unexpected end of data); fix the line"),
    (
        "a.csv",
        b"text,n,text\nHello,1,you\n",
        ", line 1: got the column text 2 times; rename or remove it",
    ),
    (
        "a.jsonl",
        b'{"text": "x"}\n{"text": "y", "meta": {"a": 1, "a": 2}}\n',
        ", line 2: invalid JSON (the key a is there 2 times); fix it",
    ),
]
# The same of files of other formats.
BAD_ROWS: list[tuple[str, bytes, FormatName, str]] = [
    (
        "a.jsonl",
        b'{"prompt": "x", "answer": "y"}\n',
        "prompt-completion",
        f", line 1: got columns prompt, answer, expected completion; {NAME}",
    ),
    (
        "a.txt",
        b"x",
        "prompt-completion",
        f", byte 0: got columns text, expected prompt; {NAME}",
    ),
    (
        "a.jsonl",
        b'{"messages": [{"role": "user", "content": "x"}, {"role": "bot", "content": "y"}]}\n',
        "messages",
        f", line 1: got role 'bot' in message 2, expected one of {ROLES}; "
        "rename the role or remove the row",
    ),
]


def test_a_file_that_cannot_be_used_costs_one_line_with_the_place(tmp_path: Path) -> None:
    texts: list[tuple[str, bytes, FormatName, str]] = [(n, c, "text", line) for n, c, line in BAD]
    for name, content, format, line in [*texts, *BAD_ROWS]:
        path = tmp_path / name
        path.write_bytes(content)
        assert fault(path, Shape(format)) == f"{path}{line}"


@pytest.mark.parametrize("kind", TABLES[:-1])
@pytest.mark.parametrize("packed", [".gz", ".zst"])
def test_in_a_compressed_file_the_place_is_that_of_the_text(
    tmp_path: Path, kind: str, packed: str
) -> None:
    path = write(tmp_path / f"a{kind}{packed}", {"title": ["x", "y"]})
    assert re.search(r", (line|entry) [12]: got columns title, expected text", fault(path))


@pytest.mark.parametrize("packed", [".gz", ".zst"])
def test_a_compressed_file_that_ends_early_is_reported_and_not_taken_for_whole(
    tmp_path: Path, packed: str
) -> None:
    lines = [f"text {number * number}" for number in range(20_000)]
    path = write(tmp_path / f"a.jsonl{packed}", {"text": lines})
    path.write_bytes(path.read_bytes()[:-1000])
    assert fault(path).startswith(f"{path}: can't read the file (")


def test_a_row_of_a_parquet_file_is_counted_over_its_batches(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": [*["x"] * 2400, None, "x"]})
    assert fault(path) == f"{path}, row 2401: got nothing in column text, expected text; {FILL}"


def test_two_columns_of_a_parquet_file_with_one_name_are_reported(tmp_path: Path) -> None:
    columns = pa.array(["x"]), pa.array(["y"])
    pq.write_table(pa.Table.from_arrays(columns, ["text", "text"]), tmp_path / "a.parquet")
    assert fault(tmp_path / "a.parquet") == (
        f"{tmp_path}/a.parquet: got the column text 2 times; rename or remove it"
    )


def test_text_of_a_parquet_file_that_is_no_utf_8_is_reported(tmp_path: Path) -> None:
    column = pa.array([b"x", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert fault(tmp_path / "a.parquet") == (
        f"{tmp_path}/a.parquet, rows 1 to 2: invalid UTF-8; convert the text to UTF-8"
    )


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.parquet", "a.csv.gz"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    assert fault(tmp_path / name).startswith(f"{tmp_path / name}: can't read the file (")


@pytest.mark.parametrize(("name", "line"), [("a.jsonl", 3), ("a.json", 1)])
def test_json_nested_too_deeply_costs_one_line(tmp_path: Path, name: str, line: int) -> None:
    path = tmp_path / name
    path.write_bytes((LINE * 2 if name == "a.jsonl" else b"") + b"[" * 100_000 + b"\n")
    message = fault(path)
    assert message.startswith(
        f"{path}, line {line}: invalid JSON (maximum recursion depth exceeded"
    )
    assert "\n" not in message


@pytest.mark.parametrize(("ending", "num_parts"), [(".jsonl", 1), (".jsonl.gz", 30)])
def test_small_files_share_a_part_unless_their_size_is_unknown(
    ending: str, num_parts: int, tmp_path: Path
) -> None:
    """A part costs milliseconds, and its size is what it takes of memory."""
    names = [str(tmp_path / f"{number}{ending}") for number in range(30)]
    for name in names:
        pack(Path(name), f'{{"text": "{name}"}}\n'.encode())
    section = LocalFiles.model_validate({"source": "files", "path": names})
    source = open_source(section, {"train": names}, tmp_path)
    parts = [*source.splits["train"]()]
    assert len(parts) == num_parts
    assert [row["text"] for row in documents_in(parts, Findings())] == names
    assert sum(part.num_bytes for part in parts) == source.num_bytes
