"""Settings as columns of the comparison."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_results import write_run, write_state
from pages import Parsed

from moray.report.columns import columns_of, differing_settings, label, short_names
from moray.report.page import render
from moray.results import load


def write_run_on(project: Path, run: str, store: str, recipe: dict[str, Any], **train: Any) -> None:
    """A run whose rows were made by a recipe."""
    record = write_run(project, run, train=train) / "train.json"
    content = json.loads(record.read_text())
    content["inputs"]["stores"] = {"functions": f"results/tokens/{store}"}
    record.write_text(json.dumps(content))
    folder = project / "results/tokens" / store
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"recipe": recipe}))


def headings(project: Path) -> list[str]:
    page = Parsed(render(load(project / "results"))).text
    return page.partition("Plot")[2].partition("Parameters")[0].split("\n")


def test_keys_of_the_data_that_differ_are_columns(tmp_path: Path) -> None:
    for size in (128, 256):
        recipe = {"block_size": size, "packing": True, "format": "text"}
        write_run_on(tmp_path, f"a{size}", f"store-{size}", recipe)
    settings = load(tmp_path / "results").settings
    assert settings["data.block_size"].tolist() == [128, 256]
    assert settings[["model", "dataset"]].drop_duplicates().to_numpy().tolist() == [
        ["tiny", "functions"]
    ]
    assert list(differing_settings(settings)) == ["run", "data.block_size"]
    shown = [word.strip() for word in headings(tmp_path) if word.strip()]
    assert shown == ["Run", "block_size", "Metric", "Base", "Tuned"]


def test_a_sweep_has_columns_instead_of_long_names(tmp_path: Path) -> None:
    for rate in (1e-3, 2e-3):
        for seed in (0, 1):
            name = f"tuned-learning_rate={rate}-seed={seed}"
            write_run(tmp_path, name, train={"learning_rate": rate, "seed": seed})
    results = load(tmp_path / "results")
    columns = columns_of(differing_settings(results.settings))
    assert columns == {"train.learning_rate": "learning_rate", "train.seed": "seed"}
    page = Parsed(render(results)).text
    for section, end in (("Plot", "In brackets"), ("From best", "Of runs that")):
        rows = page.partition(section)[2].partition(end)[0]
        assert "tuned-" not in rows
        assert "0.002" in rows


@pytest.mark.parametrize(
    ("name", "columns", "short"),
    [
        ("a-block_size=8-seed=1", ["data.block_size", "train.seed"], "a"),
        ("a-block_size=8-seed=1", ["train.seed"], "a-block_size=8-seed=1"),
        ("a-train.seed=1", ["train.seed"], "a"),
        ("a-size=1", ["data.block_size"], "a-size=1"),
        ("a-b", ["train.seed"], "a-b"),
        ("a=b", ["train.seed"], "a=b"),
    ],
)
def test_a_name_without_its_values_is_shown_if_columns_have_them(
    name: str, columns: list[str], short: str
) -> None:
    assert short_names([name], dict.fromkeys(columns, "")) == {name: short}


def test_a_name_is_shown_as_words() -> None:
    assert label("a-b-learning_rate=1e-05-seed=3") == "a-b, learning_rate 1e-05, seed 3"


def test_settings_beyond_the_columns_have_a_table_of_their_own(tmp_path: Path) -> None:
    keys = ("adam_beta1", "adam_beta2", "decay_ratio", "min_lr_ratio", "warmup_ratio", "seed")
    changed = dict.fromkeys((*keys, "weight_decay"), 0.5) | {"seed": 1}
    write_run(tmp_path, "a-weight_decay=0.5", train=changed)
    write_run(tmp_path, "b")
    results = load(tmp_path / "results")
    columns = columns_of(differing_settings(results.settings))
    assert columns == {"train.weight_decay": "weight_decay"}
    text = Parsed(render(results)).text
    assert "train.adam_beta1" in text.partition("Settings that differ")[2]


def test_a_key_that_one_run_has_differs(tmp_path: Path) -> None:
    write_run(tmp_path, "a", sections={"adapter": {"r": 8}})
    write_run_on(tmp_path, "b", "store", {"block_size": 8})
    write_state(tmp_path, "unfinished", until=3)
    found = differing_settings(load(tmp_path / "results").settings)
    # What an unfinished run's data are isn't known.
    assert [name for name in found if "preference" not in name] == ["run", "adapter.r"]


def test_equal_ends_of_keys_have_whole_headings(tmp_path: Path) -> None:
    write_run(tmp_path, "a", train={"seed": 1}, sections={"other": {"seed": 0}})
    write_run(tmp_path, "b", train={"seed": 2}, sections={"preference": {"seed": 0}})
    differing = differing_settings(load(tmp_path / "results").settings)
    headings = columns_of(differing)
    assert headings["train.seed"] == "train.seed"
    assert headings["preference.seed"] == "preference.seed"
