"""Columns of the user's rows: those that nothing reads are told."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moray.errors import UserError
from moray.stages.download import download

SHARES = {"validation_share": 0.2, "test_share": 0.2}


def local(folder: Path, paths: list[Path], **more: Any) -> None:
    """Download local files, as the workflow does once it has found them."""
    names = [str(path) for path in paths]
    download(folder, {"source": "files", "path": names, **SHARES, **more}, {"train": names})


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def talk(number: int, **more: Any) -> dict[str, Any]:
    """A row of `messages`."""
    said = [("user", f"question {number}"), ("assistant", "answer")]
    return {"messages": [{"role": role, "content": text} for role, text in said], **more}


PLAIN = "dataset out: columns that are not used: "
UNUSED: list[tuple[dict[str, Any], list[dict[str, Any]], str | None]] = [
    ({}, [{"text": f"{n}"} for n in range(40)], None),
    # Rows may have different ones; what is empty in all of them is no loss.
    (
        {},
        [{"text": f"{n}", ("id" if n % 2 else "source"): n} | {"images": []} for n in range(40)],
        f"{PLAIN}source, id",
    ),
    (
        {"format": "messages"},
        [talk(n, id=n, tools=None, images=["a.png"] if n == 39 else None) for n in range(40)],
        f"warning: {PLAIN}id, images; rows are trained as if images weren't there",
    ),
    (
        {"format": "messages"},
        [talk(n, functions=[{"name": "f"}], loss_mask=[0], train=False) for n in range(40)],
        f"warning: {PLAIN}functions, loss_mask, train; rows are trained as if they weren't there",
    ),
    # Of two places for the same, one is read.
    (
        {"format": "messages"},
        [talk(n, prompt=f"{n}", conversations=[{"from": "x"}]) for n in range(40)],
        f"{PLAIN}prompt, conversations",
    ),
    (
        {"format": "messages"},
        [
            {"prompt": talk(n)["messages"][:1], "completion": talk(n)["messages"][1:]}
            for n in range(40)
        ],
        None,
    ),
    # A label says what is wanted of an answer (KTO's), but of a text what it is about.
    (
        {"format": "prompt-completion"},
        [{"prompt": f"{n}", "completion": "a", "label": n % 2 == 0} for n in range(40)],
        f"warning: {PLAIN}label; rows are trained as if label weren't there",
    ),
    ({}, [{"text": f"{n}", "label": 1} for n in range(40)], f"{PLAIN}label"),
    (
        {"columns": {"text": "body", "group": "patient"}},
        [{"body": f"{n}", "patient": n, "text": "title"} for n in range(40)],
        f"{PLAIN}text",
    ),
    (
        {},
        [{"text": f"{n}"} | {f"c{number}": 1 for number in range(14)} for n in range(40)],
        f"{PLAIN}c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 4 more",
    ),
]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", "url"])
@pytest.mark.parametrize(("more", "rows", "line"), UNUSED)
def test_columns_that_nobody_reads_are_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: dict[str, Any],
    rows: list[dict[str, Any]],
    line: str | None,
    ending: str,
) -> None:
    file = write(tmp_path / "rows.jsonl", rows)
    if ending == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        file = tmp_path / "rows.parquet"
        pq.write_table(pa.table(columns), file)
    if ending == "url":
        download(tmp_path / "out", {"source": "url", "url": f"file://{file}", **SHARES, **more})
    else:
        local(tmp_path / "out", [file], **more)
    said = [text for text in capsys.readouterr().err.splitlines() if "not used" in text]
    assert said == ([line] if line else [])
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    told = line and line.removeprefix("warning: ").removeprefix(PLAIN).partition(";")[0]
    unused = described.get("unused_columns", [])
    assert ", ".join(unused[:10]) == (told or "").partition(" and")[0]
    assert len(unused) == (14 if "c13" in unused else len(unused))


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            {"input": "inputs"},
            "datasets.out.columns.input: no row has a column inputs, only instruction, input, "
            "output, sys_prompt; did you mean input?",
        ),
        (
            {"input": "input", "system": "sysprompt"},
            "datasets.out.columns.system: no row has a column sysprompt, only instruction, input, "
            "output, sys_prompt; did you mean sys_prompt?",
        ),
        (
            {"history": "zzz"},
            "datasets.out.columns.history: no row has a column zzz, only instruction, input, "
            "output, sys_prompt; name another, or remove the key",
        ),
        ({"input": "sys_prompt"}, None),
    ],
)
def test_a_mapped_column_must_be_in_some_row(
    tmp_path: Path, columns: dict[str, str], line: str | None
) -> None:
    rows: list[dict[str, Any]] = [
        {"instruction": f"{n}", "input": "i", "output": "o"} for n in range(40)
    ]
    rows[39]["sys_prompt"] = "s"
    file = write(tmp_path / "rows.jsonl", rows)
    if line is None:
        local(tmp_path / "out", [file], format="instruction", columns=columns)
        return
    with pytest.raises(UserError) as caught:
        local(tmp_path / "out", [file], format="instruction", columns=columns)
    assert str(caught.value) == line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["prompt-completion", "preference"])
@pytest.mark.parametrize("repeats", [1, 30])
def test_answers_that_repeat_their_prompt_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, repeats: int
) -> None:
    def row(number: int) -> dict[str, Any]:
        prompt = f"{number} Why is the sky blue?"
        before = prompt if number < repeats else ""
        if format == "preference":
            # A pair's prompt is there twice only if both answers repeat it.
            return {"prompt": prompt, "chosen": f"{before} Dust.", "rejected": f"{before} No."}
        return {"prompt": prompt, "completion": f"{before} Dust."}

    rows = [row(number) for number in range(40)]
    local(tmp_path / "out", [write(tmp_path / "rows.jsonl", rows)], format=format)
    said = [line for line in capsys.readouterr().err.splitlines() if "whole prompt" in line]
    assert [line.partition(", which")[0] for line in said] == [
        f"warning: dataset out: in {repeats} of 40 rows, the answer begins with the whole prompt"
    ] * (repeats > 20)
