"""What the labels of a dataset are."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from classified import ROWS, write_rows
from datasets import ClassLabel, Dataset, Features, List, Value
from scipy.stats import binomtest

from moray.errors import UserError
from moray.stages.download import download

SINGLE, MULTI, REGRESSION = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)


def described(
    folder: Path, labels: list[Any], splits: dict[str, list[Any]] | None = None, **keys: Any
) -> dict[str, Any]:
    """The description of a dataset whose texts have these labels."""
    files = {}
    for split, own in {"train": labels, **(splits or {})}.items():
        path = folder / f"{split}.jsonl"
        write_rows(path, ({"text": f"{split} {n}", "label": one} for n, one in enumerate(own)))
        files[split] = [str(path)]
    section = {**ROWS, "path": {split: paths[0] for split, paths in files.items()}, **keys}
    download(folder / "dataset", section, files)
    found: dict[str, Any] = json.loads((folder / "dataset/dataset.json").read_text())
    return found


@pytest.mark.parametrize(
    ("labels", "problem", "names"),
    [
        (["good", "bad"], SINGLE, ["bad", "good"]),
        ([2, 10, 1], SINGLE, ["1", "2", "10"]),
        # As pandas writes whole numbers beside a missing one.
        ([1.0, 0.0], SINGLE, ["0", "1"]),
        ([True, False], SINGLE, ["False", "True"]),
        ([["b", "a"], [], ["a"]], MULTI, ["a", "b"]),
        # As a table of text has lists.
        (['["b", "a"]', "[]"], MULTI, ["a", "b"]),
        ([0.5, 3, 1.25], REGRESSION, []),
        (["0.5", "n/a"], SINGLE, ["0.5", "n/a"]),
        (["0.5", "-0.25", "0", "10"], REGRESSION, []),
        # Codes, of which ICD-9 has some that are equal as numbers.
        (["007.1", "7.1", "38.11", "008.45"], SINGLE, ["007.1", "7.1", "008.45", "38.11"]),
    ],
)
def test_the_data_decide_what_the_problem_is(
    labels: list[Any], problem: str, names: list[str], tmp_path: Path, capsys: Any
) -> None:
    found = described(tmp_path, labels * 20)
    assert (found["problem_type"], found["label_names"]) == (problem, names)
    assert f"({problem})" in capsys.readouterr().err


def test_the_config_decides_first(tmp_path: Path) -> None:
    assert described(tmp_path / "a", [1, 2, 5] * 9, problem_type=REGRESSION)["label_names"] == []
    assert described(tmp_path / "b", [1.5, 2] * 9, problem_type=SINGLE)["label_names"] == [
        "1.5",
        "2",
    ]


@pytest.mark.parametrize(
    ("labels", "keys", "message"),
    [
        (["a", "b", ["a"]], {}, "dataset: got a list of labels in some rows, and one label in"),
        (["a", "b"], {"problem_type": REGRESSION}, "dataset.problem_type: got regression, but a"),
        (["a", "b"], {"problem_type": MULTI}, "problem_type: got multi_label_classification, but "),
        ([["a"], ["b"]], {"problem_type": SINGLE}, "but labels are lists"),
        (["a", "a"], {}, "dataset: got one class, a; add another"),
        ([[1, 0, 0], [0, 1, 0]], {}, "line 1: got 0 more than once in a list of labels; list the"),
        (["[1, 0, 0]", "[0, 1, 0]"], {}, "dataset: got a label more than once in [1, 0, 0]; list"),
        ([{"a": 1}, {"a": 0}], {}, "line 1: got dict as a label, expected text or a number"),
        ([[["a"]], [["b"]]], {}, "line 1: got list as a label, expected text or a number"),
        ([0, 1, "a"], {"problem_type": REGRESSION}, "got regression, but a is a label"),
        ([0.5, 1.5, 2, "n/a"], {}, "40 labels that are numbers with a fraction, and 20 that are "),
        (
            [0, 1, -100],
            {},
            "dataset: got -100 as the label of 20 rows, which stands for no ",
        ),
        (
            [[0, 1], [-100]],
            {},
            "got -100 as the label of 20 rows, which stands for no label; ",
        ),
        ([0.5, 1.5, "inf"], {}, "such as inf; fix those rows to predict numbers, or set single_"),
    ],
)
def test_labels_that_are_no_problem_are_refused(
    labels: list[Any], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        described(tmp_path, labels * 20, **keys)
    assert message in str(raised.value)


def test_a_number_to_predict_may_be_any(tmp_path: Path, capsys: Any) -> None:
    assert described(tmp_path / "a", [-100, -1, 0.5] * 20)["problem_type"] == REGRESSION
    found = described(tmp_path / "b", [-100, -1, 0] * 20, problem_type=REGRESSION)
    assert found["label_names"] == []
    assert "-1 is a class" not in capsys.readouterr().err


def test_minus_one_is_a_class_and_named_where_others_count_from_zero(
    tmp_path: Path, capsys: Any
) -> None:
    assert described(tmp_path / "a", [1, 0, -1] * 20)["label_names"] == ["-1", "0", "1"]
    assert "dataset dataset: -1 is a class, that of 20 rows; if it says" in capsys.readouterr().err
    assert described(tmp_path / "b", [1, -1] * 20)["label_names"] == ["-1", "1"]
    assert "-1 is a class" not in capsys.readouterr().err


def test_a_label_that_is_only_held_out_is_named(tmp_path: Path) -> None:
    test = {"test": ["a", "c", "d"]}
    with pytest.raises(UserError, match=r"2 of 4 labels are in no row to train on.*: c, d; add"):
        described(tmp_path, ["a", "b"] * 20, test)


@pytest.mark.parametrize("rows", [1, 5, 29, 30])
def test_few_rows_to_test_on_are_said(
    rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described(tmp_path, ["a", "b"] * 40, {"test": ["a"] * rows})
    said = [line for line in capsys.readouterr().err.splitlines() if "little" in line]
    if rows == 30:
        assert said == []
        return
    # SciPy's exact interval of a share.
    lowest = binomtest(rows, rows).proportion_ci(0.95).low
    (line,) = said
    what = "1 test text tells" if rows == 1 else f"{rows} test texts tell"
    assert line == (
        f"warning: dataset dataset: {what} little: even of a model without a fault there, the "
        f"accuracy's 95% interval is {lowest:.2f} to 1; add some"
    )


def test_of_few_numbers_no_accuracy_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described(tmp_path, [number / 8 for number in range(60)])
    assert "little" not in capsys.readouterr().err


@pytest.mark.parametrize("nothing", [None, "", " ", "nan"])
def test_a_row_without_a_label_is_bad(nothing: str | None, tmp_path: Path) -> None:
    """In tables of text, an empty value is none, and what pandas made text of one."""
    with pytest.raises(UserError, match="got nothing in column label, expected text"):
        described(tmp_path / "a", ["a", "b", nothing] * 20)
    found = described(tmp_path / "b", [*["a", "b"] * 99, nothing], bad_rows="drop")
    assert sum(split["rows"] for split in found["splits"].values()) == 198


def test_columns_of_glue_are_mapped_and_numbers_get_their_names(tmp_path: Path) -> None:
    """As the library `datasets` writes them; -1 stands for nothing."""
    feature = {"names": ["not_equivalent", "equivalent"], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    rows = [{"sentence1": f"a {n}", "sentence2": f"b {n}", "label": n % 2} for n in range(40)]
    table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "pairs.parquet")
    columns = {"text": "sentence1", "text_pair": "sentence2"}
    section = {**ROWS, "path": str(tmp_path / "pairs.parquet"), "columns": columns}
    download(tmp_path / "pairs", section, {"train": [section["path"]]})
    description = json.loads((tmp_path / "pairs/dataset.json").read_text())
    assert description["label_names"] == ["equivalent", "not_equivalent"]
    kept = pq.read_table(tmp_path / "pairs/train.parquet").to_pylist()[0]
    number = kept["text"].removeprefix("a ")
    assert kept["text_pair"] == f"b {number}"
    assert kept["label"] == ("equivalent" if int(number) % 2 else "not_equivalent")


def test_numbers_in_lists_get_their_names(tmp_path: Path) -> None:
    """As the library `datasets` writes them."""
    rows = [{"text": f"a {n}", "label": [n % 2, 2]} for n in range(40)]
    features = Features(
        {"text": Value("string"), "label": List(ClassLabel(names=["joy", "fear", "awe"]))}
    )
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    section = {**ROWS, "path": str(tmp_path / "rows.parquet")}
    download(tmp_path / "dataset", section, {"train": [section["path"]]})
    description = json.loads((tmp_path / "dataset/dataset.json").read_text())
    assert description["label_names"] == ["awe", "fear", "joy"]


def test_texts_with_other_second_texts_are_no_duplicates(tmp_path: Path) -> None:
    rows = [{"text": "same", "text_pair": str(n), "label": n % 2} for n in range(40)]
    write_rows(tmp_path / "rows.jsonl", rows)
    section = {**ROWS, "path": str(tmp_path / "rows.jsonl")}
    download(tmp_path / "dataset", section, {"train": [section["path"]]})
    description = json.loads((tmp_path / "dataset/dataset.json").read_text())
    assert sum(split["rows"] for split in description["splits"].values()) == 40
