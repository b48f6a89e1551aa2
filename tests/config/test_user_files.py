"""The files that datasets, models and benchmarks are made from."""

import os
import time
from datetime import datetime
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from small_config import experiment_with

from moray.config import plan, user_files
from moray.config.inputs import missing_file_error
from moray.errors import UserError

KINDS = (".txt", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files of notes."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "deep/c.txt", "other.md"):
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("notes/a.txt", ["notes/a.txt"]),
        ("notes/*.txt", ["notes/a.txt", "notes/b.txt"]),
        ("notes/**/*.txt", ["notes/a.txt", "notes/b.txt", "notes/deep/c.txt"]),
        # Folders are no files; the order of a list counts, and nothing is read twice.
        ("notes/*", ["notes/a.txt", "notes/b.txt", "notes/other.md"]),
        (["notes/b.txt", "notes/*.txt"], ["notes/b.txt", "notes/a.txt"]),
    ],
)
@pytest.mark.usefixtures("notes")
def test_the_files_of_a_dataset_are_found(path: str | list[str], files: list[str]) -> None:
    found = user_files.dataset_files(experiment_with({"datasets.notes.path": path}), "notes")
    assert found == {"train": files}


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("data [v2]/a.txt", ["data [v2]/a.txt"]),
        ("data [v2]/*.txt", ["data [v2]/[b].txt", "data [v2]/a.txt"]),
        ("data [v2]/[[]b].txt", ["data [v2]/[b].txt"]),
        ("data [v2]", ["data [v2]/C.TXT", "data [v2]/[b].txt", "data [v2]/a.txt"]),
        ("n[o]tes/a.txt", ["notes/a.txt"]),
    ],
)
def test_names_that_are_there_mean_themselves_and_endings_have_any_case(
    path: str, files: list[str], notes: Path
) -> None:
    (notes / "data [v2]").mkdir()
    for name in ("a.txt", "[b].txt", "C.TXT"):
        (notes / "data [v2]" / name).write_text("x")
    found = user_files.dataset_files(experiment_with({"datasets.notes.path": path}), "notes")
    assert found == {"train": files}


@pytest.mark.parametrize("path", ["notes", "notes/*", "notes/far.txt"])
def test_a_link_that_leads_nowhere_costs_one_line(path: str, notes: Path) -> None:
    (notes / "notes/far.txt").symlink_to("nowhere.txt")
    with pytest.raises(UserError) as caught:
        user_files.dataset_files(experiment_with({"datasets.notes.path": path}), "notes")
    assert str(caught.value) == (
        "datasets.notes.path: notes/far.txt is a link to nowhere.txt, which doesn't exist; fetch "
        "what it leads to, or remove it"
    )


MIXED = "whose rows would be mixed; give path: "


@pytest.mark.parametrize(
    ("files", "path", "line"),
    [
        (
            ["train.jsonl", "validation.jsonl", "test.jsonl", "more.jsonl"],
            "data",
            "data has files named after splits (train.jsonl, validation.jsonl, test.jsonl), "
            f"{MIXED}"
            "{train: data/train.jsonl, validation: data/validation.jsonl, test: data/test.jsonl}, ",
        ),
        # As the library `datasets` names them, and others; several of a split are a list.
        (
            ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "DEV.csv.gz"],
            "data/*",
            "data/* has files named after splits (train-00000-of-00002.parquet, DEV.csv.gz), "
            f"{MIXED}{{train: [data/train-00000-of-00002.parquet, …], "
            "validation: data/DEV.csv.gz}",
        ),
        (
            ["algebra_dev.csv", "algebra_test.csv"],
            "data/",
            f"data/ has files named after splits (algebra_dev.csv, algebra_test.csv), {MIXED}"
            "{train: …, validation: data/algebra_dev.csv, test: data/algebra_test.csv}, ",
        ),
        (
            ["training/a.jsonl", "testing/deep/b.jsonl"],
            ["data/**/*.jsonl"],
            "data/**/*.jsonl has files named after splits (training/a.jsonl, testing/deep/b.jsonl"
            f"), {MIXED}{{train: data/training/a.jsonl, test: data/testing/deep/b.jsonl}}",
        ),
        ({"wiki.train.txt", "wiki.test.txt"}, "data", "data has files named after splits"),
        # What was listed is meant; one split's files are no mixture.
        (["train.jsonl", "test.jsonl"], ["data/train.jsonl", "data/test.jsonl"], None),
        (["train.jsonl", "train-2.jsonl", "notes.jsonl"], "data", None),
        (["latest.jsonl", "train.jsonl", "strain.jsonl"], "data", None),
        (["test/a.jsonl", "test/train.jsonl"], "data/test", None),
        # Documents have any names.
        (["training_notes.txt", "test_plan.txt", "story.txt"], "data", None),
    ],
)
def test_files_named_after_splits_are_not_mixed(
    files: list[str],
    path: str | list[str],
    line: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in files:
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    experiment = experiment_with({"datasets.notes.path": path})
    if line is None:
        assert user_files.dataset_files(experiment, "notes")["train"]
        return
    with pytest.raises(UserError) as caught:
        user_files.dataset_files(experiment, "notes")
    assert str(caught.value).startswith(f"datasets.notes.path: {line}")
    assert str(caught.value).endswith("or list the files to mix them")


def test_a_time_in_the_future_costs_one_line(notes: Path) -> None:
    path = notes / "notes/a.txt"
    os.utime(path, (0, time.time() + 10))
    experiment = experiment_with({"datasets.notes.path": "notes/a.txt"})
    assert user_files.dataset_files(experiment, "notes")
    os.utime(path, (0, datetime(2099, 5, 1, 7, 30).timestamp()))
    with pytest.raises(UserError) as caught:
        user_files.dataset_files(experiment, "notes")
    assert str(caught.value) == (
        "datasets.notes.path: the time of notes/a.txt, 2099-05-01 07:30, is in the future, so all "
        "results would be older than it; run touch on the file, or set the clock"
    )


@pytest.mark.usefixtures("notes")
def test_each_split_has_files_of_its_own() -> None:
    path = {"train": "notes/*.txt", "test": ["notes/deep/c.txt", "notes/deep/*"]}
    found = user_files.dataset_files(experiment_with({"datasets.notes.path": path}), "notes")
    assert found == {"train": ["notes/a.txt", "notes/b.txt"], "test": ["notes/deep/c.txt"]}


@pytest.mark.usefixtures("notes")
def test_a_file_that_is_not_there_may_be_made_by_another_workflow() -> None:
    path = {"train": ["notes/a.txt", "made/none.txt"], "test": "rows.jsonl"}
    experiment = experiment_with({"datasets.notes.path": path})
    assert user_files.dataset_files(experiment, "notes") == {
        "train": ["notes/a.txt", "made/none.txt"],
        "test": ["rows.jsonl"],
    }
    assert str(missing_file_error(experiment, "notes", "rows.jsonl")) == (
        "datasets.notes.path: there is no file rows.jsonl, and no rule makes it; check the path; "
        "it is relative to the working directory"
    )


@pytest.mark.parametrize("path", ["none/*.txt", ["notes/a.txt", "none[12]"]])
@pytest.mark.usefixtures("notes")
def test_a_dataset_whose_files_are_missing_is_reported_before_anything_starts(
    path: str | list[str],
) -> None:
    missing = path[-1] if isinstance(path, list) else path
    for paths in (path, {"train": path}, {"train": "notes/a.txt", "validation": path}):
        with pytest.raises(UserError) as caught:
            user_files.dataset_files(experiment_with({"datasets.notes.path": paths}), "notes")
        assert str(caught.value) == (
            f"datasets.notes.path: no file matches {missing}; check the path; it is relative to "
            "the working directory"
        )


def test_a_folder_means_its_files_of_the_kinds_that_are_read(notes: Path) -> None:
    texts = [f"{kind}{packed}" for kind in KINDS for packed in ("", ".gz", ".zst")]
    for name in ("a.png", "a.parquet.gz", "a.gz", ".hidden.txt", "a.parquet"):
        (notes / "notes" / name).write_text("x")
    for ending in texts:
        (notes / f"notes/a{ending}").write_text("x")
    expected = sorted(["notes/a.parquet", "notes/b.txt", *(f"notes/a{text}" for text in texts)])
    for path in ("notes", "notes/", str(notes / "notes")):
        found = user_files.dataset_files(experiment_with({"datasets.notes.path": path}), "notes")
        assert [str(Path(file).relative_to(Path(path).parent)) for file in found["train"]] == (
            expected
        )


def test_a_folder_of_images_means_its_tables(notes: Path) -> None:
    (notes / "notes/a.parquet").write_text("x")
    images = {"source": "files", "format": "images", "path": "notes"}
    assert user_files.dataset_files(experiment_with({"datasets.x": images}), "x") == {
        "train": ["notes/a.parquet"]
    }


@pytest.mark.usefixtures("notes")
def test_a_folder_without_such_files_costs_one_line() -> None:
    images = {"source": "files", "format": "images", "path": {"train": "notes"}}
    with pytest.raises(UserError) as caught:
        user_files.dataset_files(experiment_with({"datasets.x": images}), "x")
    assert str(caught.value) == (
        "datasets.x.path: the folder notes has no file of a type that is read; check the path, "
        "or give a glob of the files in its folders"
    )


def test_a_folder_of_the_datasets_library_means_its_rows_or_is_refused(notes: Path) -> None:
    parts = Dataset.from_dict({"text": ["a", "b"]})
    parts.save_to_disk(notes / "saved")
    DatasetDict(train=parts).save_to_disk(notes / "splits")
    for folder, file in (("saved", "state.json"), ("splits", "dataset_dict.json")):
        with pytest.raises(UserError) as caught:
            user_files.dataset_files(experiment_with({"datasets.notes.path": folder}), "notes")
        assert str(caught.value).startswith(
            f"datasets.notes.path: {folder} was written by save_to_disk of the datasets library "
            f"(it has {file}), which is not read; write it as Parquet: "
        )
    (notes / "clone").mkdir()
    for name in ("dataset_infos.json", "rows.jsonl"):
        (notes / "clone" / name).write_text("{}")
    found = user_files.dataset_files(experiment_with({"datasets.notes.path": "clone"}), "notes")
    assert found == {"train": ["clone/rows.jsonl"]}


def test_a_folder_is_no_file_of_a_source_that_reads_one(notes: Path) -> None:
    idx = {"source": "idx", "train": {"images": "notes", "labels": "notes/a.txt"}}
    with pytest.raises(UserError, match=r"^datasets\.x\.train\.images: no file matches notes; "):
        user_files.dataset_files(experiment_with({"datasets.x": idx}), "x")


@pytest.mark.parametrize("name", ["a{b.txt", "a}b.txt", "{a}.txt", "{deep}/a.txt"])
def test_braces_in_the_name_of_a_file_are_refused(notes: Path, name: str) -> None:
    """Rules take what stands in them for a wildcard."""
    (notes / "notes" / name).parent.mkdir(exist_ok=True)
    (notes / "notes" / name).write_text("x")
    with pytest.raises(UserError) as caught:
        user_files.dataset_files(
            experiment_with({"datasets.notes.path": "notes/**/*.txt"}), "notes"
        )
    assert str(caught.value) == (
        f"datasets.notes.path: notes/{name} contains braces, which Snakemake reads as wildcards; "
        "rename the file"
    )


def test_a_name_that_is_no_text_is_refused(notes: Path) -> None:
    """As archives of other systems give them; Snakemake fails on it."""
    open(os.fsencode(notes / "notes") + b"/caf\xe9.txt", "w").close()
    with pytest.raises(UserError) as caught:
        user_files.dataset_files(experiment_with({"datasets.notes.path": "notes"}), "notes")
    assert str(caught.value) == (
        "datasets.notes.path: the name of b'notes/caf\\xe9.txt' isn't UTF-8; rename the file"
    )


def test_a_dataset_that_is_not_read_from_files_has_none() -> None:
    assert user_files.dataset_files(experiment_with({}), "modules") == {}
    url = {"source": "url", "url": {"train": "s3://b/*.csv", "test": "https://h/t.csv"}}
    assert user_files.dataset_files(experiment_with({"datasets.x": url}), "x") == {}


def test_a_model_depends_on_the_files_of_its_folder(notes: Path) -> None:
    folder = notes / "models/folder"
    (folder / "nested").mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_text(name)
    files = user_files.model_files(experiment_with({}), "folder")
    assert files == ["models/folder/config.json", "models/folder/model.safetensors"]


def test_a_model_depends_on_its_tokenizer_s_other_templates(notes: Path) -> None:
    folder = notes / "models/folder"
    names = ["additional_chat_templates/tool_use.jinja", "chat_template.jinja", "config.json"]
    for name in [*names, "additional_chat_templates/notes.txt"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    files = user_files.model_files(experiment_with({}), "folder")
    assert files == [f"models/folder/{name}" for name in names]


@pytest.mark.parametrize("name", ["{a}.json", "additional_chat_templates/a}.jinja"])
def test_braces_in_the_name_of_a_model_s_file_are_refused(notes: Path, name: str) -> None:
    folder = notes / "models/folder"
    (folder / name).parent.mkdir(parents=True)
    for written in ("config.json", name):
        (folder / written).write_text("{}")
    with pytest.raises(UserError) as caught:
        user_files.model_files(experiment_with({}), "folder")
    assert str(caught.value) == (
        f"models.folder.path: models/folder/{name} contains braces, which Snakemake reads as "
        "wildcards; rename the file"
    )


@pytest.mark.usefixtures("notes")
def test_a_model_whose_folder_is_missing_is_reported_before_anything_starts() -> None:
    with pytest.raises(UserError) as caught:
        user_files.model_files(experiment_with({}), "folder")
    assert str(caught.value) == (
        "models.folder.path: got models/folder, expected a folder with a config.json; "
        "check the path; it is relative to the working directory"
    )


OWN = {"runs.tuned.benchmarks.include_path": "tasks", "runs.tuned.benchmarks.tasks": ["words"]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_files_of_the_user_s_tasks_are_found_at_any_depth() -> None:
    for name in ("b.yaml", "data/a.jsonl", "__pycache__/own.pyc"):
        path = Path("tasks", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    experiment = experiment_with(OWN)
    assert user_files.benchmark_files(experiment, "tuned") == ["tasks/b.yaml", "tasks/data/a.jsonl"]
    assert user_files.benchmark_files(experiment, "base") == []


def test_a_missing_folder_costs_one_line() -> None:
    with pytest.raises(UserError) as error:
        user_files.benchmark_files(experiment_with(OWN), "tuned")
    assert str(error.value) == (
        "runs.tuned.benchmarks.include_path: got tasks, expected a folder with task files; check "
        "the path; it is relative to the working directory"
    )


def test_nodes_without_a_shared_folder_can_not_have_task_files() -> None:
    cluster = {"defaults.ray.address": "auto", "defaults.ray.storage_path": "s3://bucket/state"}
    Path("tasks").mkdir()
    with pytest.raises(UserError, match="need a folder that all nodes share"):
        user_files.benchmark_files(experiment_with(OWN | cluster), "tuned")


def test_intervals_are_those_of_the_evaluation_and_execution_changes_nothing() -> None:
    config = plan.benchmark_config(experiment_with(OWN), "tuned")
    for key in ("num_workers", "batch_size"):
        other = experiment_with(OWN | {f"runs.tuned.benchmarks.{key}": 2})
        assert plan.benchmark_config(other, "tuned") == config
    for key, value in {
        "benchmarks.limit": 3,
        "benchmarks.num_fewshot": 3,
        "evaluate.confidence": 0.5,
        "evaluate.bootstrap_samples": 3,
    }.items():
        other = experiment_with(OWN | {f"runs.tuned.{key}": value})
        assert plan.benchmark_config(other, "tuned") != config
