"""From a source to a dataset's folder."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from downloaded import SHARES, config, local, read, write

from moray.corpus.dataset import SPLITS, read_documents
from moray.errors import UserError
from moray.stages.download import download


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of 50 rows, the first row in both."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        names = ["in both", *(f"{path.stem} {number} é" for number in range(49))]
        write(path, [{"text": name} for name in names])
    return paths


def test_every_row_of_the_files_is_in_one_split(tmp_path: Path, files: list[Path]) -> None:
    local(tmp_path / "out", files)
    splits = read(tmp_path / "out")
    rows = [row for split in splits.values() for row in split]
    expected = [f"{name} {number} é" for name in "ab" for number in range(49)]
    assert sorted(row for row in rows if row != "in both") == sorted(expected)
    assert all(len(split) > 5 for split in splits.values())


def test_what_is_described_is_what_was_read(tmp_path: Path, files: list[Path]) -> None:
    local(tmp_path / "out", files)
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert described["source"] == "files"
    assert described["files"] == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    counts = {split: len(rows) for split, rows in read(tmp_path / "out").items()}
    assert {split: facts["rows"] for split, facts in described["splits"].items()} == counts


def test_the_same_files_make_the_same_bytes(tmp_path: Path, files: list[Path]) -> None:
    for name in ("one", "other"):
        local(tmp_path / name, files)
    for name in ("dataset.json", *(f"{split}.parquet" for split in SPLITS)):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.mark.parametrize("number", [1, 2])
def test_of_a_few_texts_the_end_can_be_held_out_as_advised(number: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in range(number)]
    for path in paths:
        path.write_text(f"a text, {path.stem}\n" * 1000)
    keys = {"validation_share": 0.05, "test_share": 0.05}
    with pytest.raises(UserError) as caught:
        local(tmp_path / "out", paths, **keys)
    there = "is 1" if number == 1 else "are 2"
    assert (
        f": no row is left for test, as hashes divide whole documents, of which there {there}; set "
        "split_by: tail to hold out the end of the text, or add documents" in str(caught.value)
    )
    local(tmp_path / "out", paths, split_by="tail", **keys)
    rows = read(tmp_path / "out")
    assert sum(map(len, rows["test"])) == round(0.05 * sum(path.stat().st_size for path in paths))


def test_the_tail_of_a_text_is_held_out_in_order(tmp_path: Path) -> None:
    text = "".join(f"{number:03}\n" for number in range(100))
    (tmp_path / "a.txt").write_text(text)
    local(tmp_path / "out", [tmp_path / "a.txt"], split_by="tail")
    splits = read(tmp_path / "out")
    assert {split: "".join(parts) for split, parts in splits.items()} == {
        "train": text[:240],
        "validation": text[240:320],
        "test": text[320:],
    }


@pytest.mark.parametrize("format", ["text", "prompt-completion"])
def test_the_standard_library_is_split_by_module(
    tmp_path: Path, library: Callable[[dict[str, str]], None], format: str
) -> None:
    modules = {
        f"m{number}.py": "".join(
            f"def f{number}_{i}():\n    '''One.'''\n    return {i}\n\n\n" for i in range(3)
        )
        for number in range(40)
    }
    library(modules)
    cfg = {"source": "python-stdlib", "format": format, "state": {"python": "3.99"}, **SHARES}
    download(tmp_path / "out", cfg)
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert described["revision"] == f"python {platform.python_version()}"
    splits = read(tmp_path / "out", "text" if format == "text" else "prompt")
    if format == "text":
        assert sorted(row for split in splits.values() for row in split) == sorted(modules.values())
    else:
        owners = [{row.split("_")[0] for row in split} for split in splits.values()]
        assert sum(map(len, owners)) == len(set.union(*owners)) == 40
        assert sum(map(len, splits.values())) == 120


def test_a_split_of_its_own_stays_whole_and_train_loses_what_it_has(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [{"text": f"{number}"} for number in range(100)])
    test = write(tmp_path / "test.jsonl", [{"text": name} for name in ("7", "new", "7", "8")])
    path = {"train": [str(train)], "test": str(test)}
    files = {"train": [str(train)], "test": [str(test)]}
    download(tmp_path / "out", config(path), files)
    splits = read(tmp_path / "out")
    assert splits["test"] == ["7", "new", "8"]
    assert sorted(splits["train"] + splits["validation"]) == sorted(
        str(number) for number in range(100) if number not in (7, 8)
    )
    assert 5 < len(splits["validation"]) < 40
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    lost = described["duplicates"]
    assert lost.pop("test") == 1
    assert sum(lost.values()) == 2


def test_rows_of_a_test_file_whose_prompt_is_trained_on_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {}
    for split, answers in (("train", ("1", "2")), ("test", ("3", "4"))):
        rows = [{"prompt": split, "completion": answer} for answer in answers]
        rows.append({"prompt": "both", "completion": split})
        files[split] = [str(write(tmp_path / f"{split}.jsonl", rows))]
    cfg = config({split: paths[0] for split, paths in files.items()}, format="prompt-completion")
    download(tmp_path / "out", cfg | {"validation_share": 0}, files)
    assert (
        "dataset out: 1 of 3 test rows share their prompt or group with rows to train on"
    ) in capsys.readouterr().err


@pytest.mark.parametrize("other", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_groups_stay_together_whatever_the_files_make_of_their_numbers(
    tmp_path: Path, other: str
) -> None:
    patients = [*range(40), None]
    whole = tmp_path / "whole.csv"
    whole.write_text("text,patient\n" + "".join(f"a {n},{n}\n" for n in patients[:-1]))
    # As pandas writes a column in which some are missing.
    texts = [f"b {number}" for number in range(3 * len(patients))]
    numbers = [float("nan") if n is None else float(n) for n in patients for _ in range(3)]
    file = tmp_path / f"fractional{other}"
    if other == ".parquet":
        pq.write_table(pa.table({"text": texts, "patient": numbers}), file)
    elif other == ".jsonl":
        write(file, [{"text": t, "patient": n} for t, n in zip(texts, numbers, strict=True)])
    else:
        between = "," if other == ".csv" else "\t"
        cells = zip(texts, ["" if n != n else str(n) for n in numbers], strict=True)
        rows = [("text", "patient"), *cells]
        file.write_text("".join(between.join(row) + "\n" for row in rows))
    local(tmp_path / "out", [whole, file], columns={"group": "patient"})
    splits: dict[int, set[str]] = {}
    alone = set()
    for split, found in read(tmp_path / "out").items():
        for text in found:
            number = int(text[2:])
            patient = patients[number if text[0] == "a" else number // 3]
            if patient is None:
                alone.add(text)
            else:
                splits.setdefault(patient, set()).add(split)
    assert [len(found) for found in splits.values()] == [1] * 40
    assert alone == set(texts[-3:])
    documents = chain(*read_documents(tmp_path / "out/train.parquet"))
    assert all("group" in row for row in documents if row["text"] not in alone)


def test_rows_of_one_prompt_need_another_group(tmp_path: Path) -> None:
    rows = [{"prompt": "Hello", "completion": str(number), "topic": number} for number in range(90)]
    file = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match="all 90 rows share their prompt or group, so all are in"):
        local(tmp_path / "out", [file], format="prompt-completion")
    columns = {"group": "topic"}
    local(tmp_path / "out", [file], format="prompt-completion", columns=columns)
    assert all(read(tmp_path / "out", "completion").values())


def test_with_all_splits_given_no_share_is_taken(tmp_path: Path) -> None:
    path = {split: str(write(tmp_path / f"{split}.jsonl", [{"text": split}])) for split in SPLITS}
    download(tmp_path / "out", config(path), {split: [file] for split, file in path.items()})
    assert read(tmp_path / "out") == {split: [split] for split in SPLITS}


def test_urls_are_read_as_local_files_are(tmp_path: Path, files: list[Path]) -> None:
    local(tmp_path / "local", files)
    cfg = {"source": "url", "url": [f"file://{path}" for path in files], **SHARES}
    download(tmp_path / "fetched", cfg)
    assert read(tmp_path / "fetched") == read(tmp_path / "local")
    names = [path.name for path in (tmp_path / "fetched").iterdir()]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "local").iterdir())


@pytest.mark.parametrize(
    ("name", "content", "changes", "problem"),
    [
        ("z.txt", b"\xff", {}, "invalid UTF-8 at byte 0"),
        ("z.jsonl", b'{"body": "x"}\n', {}, "got columns body, expected text"),
        ("z.md", b"x", {}, "got the extension '.md'"),
        (
            "z.txt",
            b"",
            {"split_by": "tail", "validation_share": 0, "test_share": 0.0001},
            "no row is left for test; ",
        ),
    ],
)
def test_of_a_bad_input_nothing_is_left(
    tmp_path: Path,
    files: list[Path],
    name: str,
    content: bytes,
    changes: dict[str, Any],
    problem: str,
) -> None:
    local(tmp_path / "out", files)
    bad = tmp_path / name
    bad.write_bytes(content)
    with pytest.raises(UserError) as caught:
        local(tmp_path / "out", [files[0], bad], **changes)
    assert problem in str(caught.value)
    assert not (tmp_path / "out").exists()


LEFT = (
    "add rows that are in no other split, or change the shares; rows of the same prompt or group "
    "are all in one"
)


@pytest.mark.parametrize(
    ("train", "test", "line"),
    [
        ("", None, "{train}: got no rows; add some"),
        ("\n\n", None, "{train}: got no rows; add some"),
        ('{"text": "a"}\n', "", "{test}: got no rows; add some"),
        (
            '{"text": "a"}\n{"text": "b"}\n',
            '{"text": "a"}\n{"text": "b"}\n',
            f"{{train}}: no row is left for train (2 duplicates were dropped); {LEFT}",
        ),
        (
            '{"text": " "}\n{"text": "b"}\n',
            '{"text": "b"}\n',
            "{train}: no row is left for train (1 duplicate and 1 blank row were dropped); "
            f"{LEFT}",
        ),
        (
            '{"text": "a"}\n',
            '{"text": " "}\n',
            f"{{test}}: no row is left for test (1 blank row was dropped); {LEFT}",
        ),
        (
            '{"text": "b"}\n',
            None,
            "{train}: no row is left for test, as hashes divide whole documents, of which there is "
            "1; set split_by: tail to hold out the end of the text, or add documents",
        ),
    ],
)
def test_a_split_without_rows_is_named_with_its_file_and_the_reason(
    tmp_path: Path, train: str, test: str | None, line: str
) -> None:
    paths = {"train": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl")}
    Path(paths["train"]).write_text(train)
    if test is None:
        given = {"train": paths["train"]}
    else:
        given = paths
        Path(paths["test"]).write_text(test)
    files = {split: [name] for split, name in given.items()}
    with pytest.raises(UserError) as caught:
        download(tmp_path / "out", config(given, validation_share=0), files)
    assert str(caught.value) == line.format(**paths)
    assert not (tmp_path / "out").exists()


def test_both_passes_show_how_far_they_are(
    tmp_path: Path,
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("moray.console._SECONDS_BETWEEN_LINES", 0)
    local(tmp_path / "out", files)
    first, second = [line for line in capsys.readouterr().err.splitlines() if "/s" in line]
    assert first.startswith("download out: 0 of 0 MB, ")
    assert second.startswith("divide out: 100 of 100 rows, ")


def test_of_several_files_the_dataset_is_named(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, []) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(UserError, match=r"^datasets\.out: got no rows; add some$"):
        local(tmp_path / "out", paths)
    with pytest.raises(UserError, match=r"^datasets\.out: got no rows; add some$"):
        download(tmp_path / "out", {"source": "url", "url": f"file://{paths[0]}", **SHARES})


def test_files_that_were_fetched_before_a_server_failed_are_not_fetched_again(
    tmp_path: Path, files: list[Path]
) -> None:
    late = tmp_path / "late.jsonl"
    cfg = {"source": "url", "url": [f"file://{files[0]}", f"file://{late}"], **SHARES}
    with pytest.raises(UserError, match=r"late\.jsonl: can't read the file"):
        download(tmp_path / "out", cfg)
    expected = files[0].read_bytes()
    files[0].unlink()
    late.write_text('{"text": "late"}\n')
    download(tmp_path / "out", cfg)
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert described["files"][f"file://{files[0]}"] == hashlib.sha256(expected).hexdigest()
    assert not (tmp_path / "out/downloaded").exists()


LIMITED = """
import json, resource, signal, sys
from pathlib import Path
from moray.errors import UserError
from moray.stages.download import download

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.argv[3] == "limited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    download(Path(sys.argv[1]), json.loads(sys.argv[2]))
except UserError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("source", ["synthetic", "url"])
def test_a_full_disk_costs_one_line_and_leaves_nothing(tmp_path: Path, source: str) -> None:
    """A limit on the size of a file makes writing fail as a full disk does."""
    rows = [{"text": hashlib.sha256(str(n).encode()).hexdigest()} for n in range(8000)]
    path = write(tmp_path / "a.jsonl", rows)
    cfg = {
        "synthetic": {"source": "synthetic", "size_gb": 1e-3},
        "url": {"source": "url", "url": f"file://{path}"},
    }[source]
    folder = tmp_path / "out"

    def run(limit: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LIMITED, str(folder), json.dumps(cfg), limit]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("limited")
    assert done.returncode == 1
    reported, _, remedy = done.stderr.strip().splitlines()[-1].partition("; ")
    assert reported.startswith(f"{folder}: the disk is full after writing ")
    assert reported.endswith(" bytes")
    assert remedy == "free some space and run the same command again"
    assert not folder.exists()
    again = run("unlimited")
    assert again.returncode == 0, again.stderr
    assert sum(map(len, read(folder).values())) > 100
