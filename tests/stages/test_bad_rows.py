"""Bad rows of a source: refused with what can be done about them, or dropped and counted."""

import json
from pathlib import Path

import pytest
import yaml
from downloaded import config, local, read, write

from moray.errors import UserError
from moray.stages.download import download


def bad_rows(path: Path, rows: int) -> list[Path]:
    """Conversations, 100 of which are bad in six ways; the bad ones are spread evenly."""
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    bad = [
        "{broken",
        "[1]",
        json.dumps({"text": "a"}),
        json.dumps({"messages": None}),
        json.dumps({"messages": talk[:1]}),
        json.dumps({"messages": [talk[0], {"role": "assistant", "content": ""}]}),
    ]
    with path.open("w") as file:
        for number in range(rows):
            if number % 100 == 99:
                file.write(f"{bad[number // 100 % 6]}\n")
            else:
                talk[0]["content"] = f"question {number}"
                file.write(json.dumps({"messages": talk}) + "\n")
    return [path]


def test_bad_rows_can_be_dropped_and_each_reason_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    local(tmp_path / "out", bad_rows(path, 10_000), format="messages", bad_rows="drop")
    assert sum(map(len, read(tmp_path / "out", "messages").values())) == 9900
    problems = [
        (17, 100, "invalid JSON (Expecting property name enclosed in double quotes)"),
        (17, 200, "got list, expected a mapping of column names to values"),
        (17, 300, "got columns text, expected messages"),
        (17, 400, "got nothing for messages, expected a list"),
        (16, 500, "the conversation has no assistant message to train on"),
        (16, 600, "message 2, of the assistant, is empty, expected text or a tool call"),
    ]
    said = [line for line in capsys.readouterr().err.splitlines() if "bad rows" in line]
    assert said == [
        f"dataset out: {rows} bad rows dropped, the first in {path}, line {line}: {problem}"
        for rows, line, problem in problems
    ]
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert [reason["rows"] for reason in described["bad_rows"]] == [17, 17, 17, 17, 16, 16]


def test_many_bad_rows_are_a_mistake_and_one_is_refused_by_default(tmp_path: Path) -> None:
    paths = bad_rows(tmp_path / "rows.jsonl", 600)
    with pytest.raises(UserError, match=rf"^{paths[0]}, line 100: invalid JSON"):
        local(tmp_path / "out", paths, format="messages")
    with paths[0].open("a") as file:
        file.write("{broken\n")
    expected = r"^datasets\.out\.max_bad_rows: 7 of 601 rows are bad, more than 1%, .*line 100: "
    with pytest.raises(UserError, match=expected):
        local(tmp_path / "out", paths, format="messages", bad_rows="drop")
    assert not (tmp_path / "out").exists()
    paths[0].write_text("{broken\n")
    with pytest.raises(UserError, match="1 of 1 rows are bad"):
        local(tmp_path / "out", paths, format="messages", bad_rows="drop")


def tickets(path: Path, rows: int, empty: int) -> list[Path]:
    """A table of which so many rows, from the second on, have no answer."""
    answers = ("" if 1 <= number <= empty else f"answer {number}" for number in range(rows))
    lines = (f"question {number},{answer}" for number, answer in enumerate(answers))
    path.write_text("\n".join(("asked,answered", *lines)) + "\n")
    return [path]


TICKETS = {"format": "instruction", "columns": {"instruction": "asked", "output": "answered"}}


@pytest.mark.parametrize(
    ("empty", "counted", "advice"),
    [
        (1, "1 of 400 rows is bad", ", or set bad_rows: drop"),
        (4, "4 of 400 rows are bad", ", or set bad_rows: drop"),
        (16, "16 of 400 rows are bad", ", or set bad_rows: drop and max_bad_rows: 0.05"),
        (200, "200 of 400 rows are bad", ", or set bad_rows: drop and max_bad_rows: 0.5"),
        (201, "201 of 400 rows are bad", ""),
    ],
)
def test_what_is_advised_about_bad_rows_works(
    empty: int, counted: str, advice: str, tmp_path: Path
) -> None:
    paths = tickets(tmp_path / "rows.csv", 400, empty)
    with pytest.raises(UserError) as caught:
        local(tmp_path / "out", paths, **TICKETS)
    assert str(caught.value) == (
        f"{paths[0]}, line 3: got nothing in column answered, expected an answer ({counted}); "
        f"fill it in, or remove the row{advice}"
    )
    if advice:
        keys = yaml.safe_load(advice.removeprefix(", or set ").replace(" and ", "\n"))
        local(tmp_path / "out", paths, **TICKETS, **keys)
        assert sum(map(len, read(tmp_path / "out", "messages").values())) == 400 - empty


def test_rows_of_another_format_are_not_counted(tmp_path: Path) -> None:
    paths = tickets(tmp_path / "rows.csv", 400, 0)
    with pytest.raises(UserError) as caught:
        local(tmp_path / "out", paths, format="instruction")
    assert str(caught.value) == (
        f"{paths[0]}, line 2: got columns asked, answered, expected instruction; name it under "
        "columns, as in {output: answer}, or choose another format"
    )


def test_bad_rows_of_a_large_source_are_counted_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moray.corpus.parts._MOST_ROWS", 100)
    monkeypatch.setattr("moray.tasks.language.sources.readers.PART_BYTES", 1000)
    monkeypatch.setattr("moray.corpus.parts.PART_BYTES", 1000)
    monkeypatch.setattr("moray.stages.read_source._MOST_COUNTED", 200)
    with pytest.raises(UserError, match=r" \(16 of the first 2\d\d rows are bad\); "):
        local(tmp_path / "out", tickets(tmp_path / "rows.csv", 4000, 16), **TICKETS)


def test_max_bad_rows_is_the_share_that_may_be_dropped(tmp_path: Path) -> None:
    paths = tickets(tmp_path / "rows.csv", 400, 16)
    with pytest.raises(UserError) as caught:
        local(tmp_path / "out", paths, **TICKETS, bad_rows="drop", max_bad_rows=0.039)
    assert str(caught.value) == (
        "datasets.out.max_bad_rows: 16 of 400 rows are bad, more than 3.9%, the first in "
        f"{paths[0]}, line 3: got nothing in column answered, expected an answer; fix the rows, or "
        "set max_bad_rows: 0.05"
    )
    local(tmp_path / "out", paths, **TICKETS, bad_rows="drop", max_bad_rows=0.04)


def test_bad_rows_of_a_file_that_two_splits_read_count_twice(tmp_path: Path) -> None:
    rows = [{"text": None if number < 15 else f"{number}"} for number in range(1000)]
    file = str(write(tmp_path / "rows.jsonl", rows))
    more = str(write(tmp_path / "more.jsonl", [{"text": "more"}]))
    files = {"train": [file, more], "test": [file]}
    with pytest.raises(UserError, match=r"^datasets\.out\.max_bad_rows: 30 of 2,001 rows are bad"):
        download(tmp_path / "out", config(files, bad_rows="drop", validation_share=0), files)
