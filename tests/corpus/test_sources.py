"""Each section of the config as documents."""

import hashlib
import json
import platform
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter
from read_parts import documents_in

from moray.config.schema import datasets
from moray.config.schema.datasets import Dataset
from moray.config.schema.sources import Source
from moray.config.tasks import source_module
from moray.corpus.findings import Findings
from moray.corpus.hub import load
from moray.corpus.sources import open_source
from moray.errors import UserError
from moray.tasks.language.sources import hub

DATASET: TypeAdapter[Dataset] = TypeAdapter(Dataset)

Read = tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is fetched meanwhile goes here."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def read(cfg: dict[str, Any], folder: Path, files: dict[str, list[str]] | None = None) -> Read:
    """A source's documents, each split read twice as those that divide it do, and its origin."""
    section = DATASET.validate_python(cfg)
    with open_source(section, files or {}, folder) as source:
        given = source.splits
        assert set(given) == section.given_splits
        first, second = (
            {
                split: [{**document} for document in documents_in(parts(), Findings())]
                for split, parts in given.items()
            }
            for _ in range(2)
        )
    assert first == second
    assert list(folder.iterdir()) == []
    return first, source.origin


def lines(path: Path, *texts: str) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_local_files_by_split(tmp_path: Path, folder: Path) -> None:
    names = [lines(tmp_path / f"{name}.jsonl", name, name * 2) for name in "abc"]
    cfg = {"source": "files", "path": {"train": [names[0], names[1]], "test": names[2]}}
    given, origin = read(cfg, folder, {"train": names[:2], "test": names[2:]})
    assert given == {
        "train": [{"text": text} for text in ("a", "aa", "b", "bb")],
        "test": [{"text": "c"}, {"text": "cc"}],
    }
    assert origin == {"files": {name: digest(Path(name)) for name in names}}


def test_urls_by_split(tmp_path: Path, folder: Path) -> None:
    names = [f"file://{lines(tmp_path / f'{name}.jsonl', name)}" for name in "abc"]
    url = {"train": [names[0]], "validation": names[1], "test": f"file://{tmp_path}/[c].jsonl"}
    given, origin = read({"source": "url", "url": url}, folder)
    assert given == {
        "train": [{"text": "a"}],
        "validation": [{"text": "b"}],
        "test": [{"text": "c"}],
    }
    files = {
        name: digest(tmp_path / f"{letter}.jsonl")
        for name, letter in zip(names, "abc", strict=True)
    }
    assert origin == {"files": files}


def test_a_fault_in_a_fetched_file_is_reported_with_its_url(tmp_path: Path, folder: Path) -> None:
    url = f"file://{lines(tmp_path / 'a.jsonl', 'a')}"
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("5\n")
    with pytest.raises(UserError) as caught:
        read({"source": "url", "url": url}, folder)
    assert str(caught.value) == (
        f"{url}, line 2: got int, expected a mapping of column names to values; fix it"
    )


def test_a_repository_of_the_hub_by_split(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner/name").mkdir(parents=True)
    lines(tmp_path / "owner/name/train.jsonl", "a", "b", "c", "d")
    # The folder stands in the hub's place.
    monkeypatch.setattr(hub, "load", lambda repo_id, revision, *rest: load(repo_id, None, *rest))
    splits = {"train": "train[:50%]", "test": "train[75%:]"}
    cfg = {"source": "hub", "repo_id": "owner/name", "revision": "0" * 40, "split": splits}
    given, origin = read(cfg, folder)
    assert given == {"train": [{"text": "a"}, {"text": "b"}], "test": [{"text": "d"}]}
    assert origin == {
        "repo_id": "owner/name",
        "revision": "0" * 40,
        "name": None,
        "data_dir": None,
        "splits_read": splits,
    }


def test_synthetic_text(folder: Path) -> None:
    given, origin = read({"source": "synthetic", "size_gb": 3e-6, "seed": 4}, folder)
    assert sum(len(document["text"]) for document in given["train"]) == 3000
    assert origin == {"bytes": 3000, "seed": 4}


@pytest.mark.parametrize(
    ("format", "keys"),
    [
        ("text", {"text", "group"}),
        ("prompt-completion", {"prompt", "completion", "group"}),
        ("preference", {"prompt", "chosen", "rejected", "tools", "group"}),
        ("unpaired-preference", {"prompt", "completion", "tools", "label", "group"}),
        ("token-classification", {"tokens", "tags", "group"}),
    ],
)
def test_the_standard_library(
    folder: Path, library: Callable[[dict[str, str]], None], format: str, keys: set[str]
) -> None:
    source = "".join(f"def f{n}():\n    '''One.'''\n    return {n}\n" for n in range(2))
    library({"a.py": source})
    given, origin = read({"source": "python-stdlib", "format": format}, folder)
    assert len(given["train"]) == (1 if format == "text" else 2)
    assert all(document.keys() == keys for document in given["train"])
    assert origin == {
        "revision": f"python {platform.python_version()}",
    }


@pytest.mark.parametrize("source", ["files", "url"])
def test_format_columns_and_system_prompt_are_those_of_the_section(
    tmp_path: Path, folder: Path, source: str
) -> None:
    (tmp_path / "a.csv").write_text("question,output\nWhy?,So.\n")
    key, path = ("path", "") if source == "files" else ("url", "file://")
    cfg = {
        "source": source,
        key: f"{path}{tmp_path}/a.csv",
        "format": "instruction",
        "columns": {"instruction": "question"},
        "system": "S",
    }
    given, _ = read(cfg, folder, {"train": [f"{tmp_path}/a.csv"]})
    (document,) = given["train"]
    assert [message["content"] for message in json.loads(document["messages"])] == [
        "S",
        "Why?",
        "So.",
    ]


SECTIONS = [
    section
    for section in vars(datasets).values()
    if isinstance(section, type)
    and issubclass(section, Source)
    and "source" in section.model_fields
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_each_source_of_the_config_has_a_module_for_each_format(section: type[Source]) -> None:
    (name,) = get_args(section.model_fields["source"].annotation)
    for format in get_args(section.model_fields["format"].annotation):
        module = source_module(name, format)
        # Images can't be read from a URL.
        assert bool(find_spec(module)) == ((name, format) != ("url", "images"))
