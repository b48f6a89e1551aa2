"""A config is read, merged with its defaults and checked."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from small_config import config_with, experiment_with, faults

from moray.config.load import load_experiment, resolve_short_keys
from moray.config.schema.experiment import SMOKE_TEST_RUN
from moray.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_runs_start_from_the_defaults_and_override_them_key_by_key() -> None:
    runs = load_experiment(config_with({})).runs
    assert runs["base"].data.block_size == runs["tuned"].data.block_size == 64
    assert runs["base"].train.max_steps == 10
    assert runs["tuned"].train.max_steps == 20
    assert runs["tuned"].train.learning_rate == 0.001


def test_overriding_goes_key_by_key_at_every_depth() -> None:
    config = config_with(
        {
            "defaults.ray.resources_per_worker": {"CPU": 2, "disk": 1},
            "runs.tuned.ray.resources_per_worker": {"CPU": 3},
        }
    )
    runs = load_experiment(config).runs
    assert runs["base"].ray.resources_per_worker == {"CPU": 2, "disk": 1}
    assert runs["tuned"].ray.resources_per_worker == {"CPU": 3, "disk": 1}


@pytest.mark.parametrize("written", ["1e2", "1.0E+2", "100", 100.0])
def test_whole_numbers_may_have_an_exponent(written: object) -> None:
    """Of YAML 1.1, which takes those without a point or a sign for text."""
    assert yaml.safe_load("1e2") == "1e2"
    keys = {"train.max_steps": written, "train.micro_batch_size": written}
    made = experiment_with({f"runs.base.{key}": value for key, value in keys.items()})
    settings = made.runs["base"].train
    assert (settings.max_steps, settings.micro_batch_size) == (100, 100)
    assert isinstance(settings.max_steps, int)


@pytest.mark.parametrize("written", ["1e-4", "1.5e0", "1e999", "e2", "1,000", 1.5])
def test_other_numbers_are_no_whole_ones(written: object) -> None:
    (fault,) = faults({"runs.base.train.max_steps": written})
    assert fault == (
        f"runs.base.train.max_steps: got {written!r}, expected a whole number; see runs in "
        "docs/configuration.md"
    )


def test_text_that_looks_like_a_number_stays_text() -> None:
    made = experiment_with({"runs.base.ray.storage_path": "1e2"})
    assert made.runs["base"].ray.storage_path == "1e2"


@pytest.mark.parametrize("written", ["1e-4", "0.1e-3", 0.0001])
def test_a_number_may_be_written_with_an_exponent(written: object) -> None:
    config = config_with({"runs.base.train.learning_rate": written})
    assert load_experiment(config).runs["base"].train.learning_rate == 0.0001


def test_yaml_reads_such_a_number_as_text_so_that_accepting_it_matters() -> None:
    assert yaml.safe_load("1e-4") == "1e-4"


@pytest.mark.parametrize("path", ["datasets.notes", "models.folder", "runs.tuned"])
def test_null_removes_an_entry(path: str) -> None:
    section, name = path.split(".")
    assert name in getattr(load_experiment(config_with({})), section)
    assert name not in getattr(load_experiment(config_with({path: None})), section)


@pytest.mark.parametrize("place", ["defaults", "runs.base", "runs.tuned"])
def test_a_chat_template_may_be_in_a_file(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chat.jinja").write_text("{{ messages[0].content }} 🐟\n", "utf-8")
    experiment = experiment_with({f"{place}.data.chat_template": "chat.jinja"})
    runs = ("base", "tuned") if place == "defaults" else (place.removeprefix("runs."),)
    for run, section in experiment.runs.items():
        expected = "{{ messages[0].content }} 🐟\n" if run in runs else None
        assert section.data.chat_template == expected


def test_each_value_of_a_grid_may_be_a_file_with_a_chat_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(f"{name}.jinja").write_text(f"{{{{ {name} }}}}")
    grid = {"data.chat_template": ["a.jinja", "b.jinja"]}
    runs = experiment_with({"runs.tuned.grid": grid}).runs
    texts = {section.data.chat_template for run, section in runs.items() if run != "base"}
    assert texts == {"{{ a }}", "{{ b }}"}


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("datasets.notes.path", "~/x/*.txt", "datasets.notes.path"),
        ("datasets.notes.path", ["a.txt", "~/x/b.txt"], "datasets.notes.path.1"),
        ("datasets.notes.path", {"train": "a", "test": "~/x"}, "datasets.notes.path.test"),
        ("datasets.i", {"source": "image-folder", "path": "~/x"}, "datasets.i.path"),
        (
            "datasets.i",
            {"source": "idx", "train": {"images": "~/x", "labels": "~/y"}},
            "datasets.i.train.images",
        ),
        ("models.folder.path", "~/x", "models.folder.path"),
        ("models.folder.adapter", "~/x", "models.folder.adapter"),
        ("runs.base.ray.storage_path", "~/x", "runs.base.ray.storage_path"),
        ("defaults.train.resume_from_checkpoint", "~/x", "runs.base.train.resume_from_checkpoint"),
        ("runs.base.benchmarks", {"include_path": "~/x"}, "runs.base.benchmarks.include_path"),
    ],
)
def test_a_tilde_is_the_home_folder(
    key: str, value: object, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found: Any = experiment_with({key: value}).model_dump(mode="json")
    for part in place.split("."):
        found = found[int(part) if part.isdigit() else part]
    assert found.startswith("/home/me/x")
    assert "~" not in found


def test_a_chat_template_may_be_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "chat.jinja").write_text("{{ a }}")
    experiment = experiment_with({"defaults.data.chat_template": "~/chat.jinja"})
    assert experiment.runs["base"].data.chat_template == "{{ a }}"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "there is no file chat.jinja; check the path"),
        (b"{{ caf\xe9 }}", "byte 0xe9 is not valid UTF-8; save the file as UTF-8"),
        (b"no template", "got 'no template', expected the text of a Jinja template"),
    ],
)
def test_a_file_that_has_no_chat_template_costs_a_line(
    content: bytes | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("chat.jinja").write_bytes(content)
    (line,) = faults({"defaults.data.chat_template": "chat.jinja"})
    assert fault in line


def test_null_for_an_entry_that_never_was_is_no_fault() -> None:
    config = config_with({"runs.gone": None, "datasets.gone": None})
    assert load_experiment(config) == load_experiment(config_with({}))


def test_the_written_config_stays_as_it_was() -> None:
    config = config_with({"runs.gone": None})
    before = copy.deepcopy(config)
    load_experiment(config)
    assert config == before


def test_an_experiment_cannot_be_changed() -> None:
    train: Any = load_experiment(config_with({})).runs["base"].train
    with pytest.raises(ValidationError, match="frozen"):
        train.seed = 1


def test_all_faults_are_reported_at_once_one_line_each() -> None:
    config = config_with(
        {
            "datasets.modules.formt": "text",
            "models.tiny.hidden_size": "wide",
            "runs.base.train.seed": -1,
            "runs.tuned.dataset": None,
        }
    )
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    paths = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert paths == [
        "datasets.modules.formt",
        "models.tiny.hidden_size",
        "runs.base.train.seed",
        "runs.tuned.dataset",
    ]


def test_checking_a_config_imports_nothing_heavy() -> None:
    script = """
import sys, moray.workers.cluster, moray.config.versions, moray.config.plan
from small_config import experiment_with, faults
experiment_with({})
faults({"defaults.train.learnig_rate": 1}), faults({"runs.base.model": "none"})
heavy = {"datasets", "numpy", "optuna", "pyarrow", "ray", "snakemake", "torch", "transformers"}
print(heavy & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")


OVERLAY = ROOT / "config/smoke-test.yaml"


def smoke_test(**given: Any) -> Any:
    overlay = yaml.safe_load(OVERLAY.read_text())
    return load_experiment(resolve_short_keys(overlay | given))


def test_keys_of_the_command_line_decide_over_size_workers_and_address() -> None:
    experiment = smoke_test(size_gb=2, workers=3, address="head:6379")
    assert list(experiment.runs) == [SMOKE_TEST_RUN]
    ray = experiment.runs[SMOKE_TEST_RUN].ray
    assert (ray.num_workers, ray.address) == (3, "head:6379")
    assert experiment.datasets["made-up"].size_gb == 2


def test_without_them_it_is_small_and_local() -> None:
    ray = smoke_test().runs[SMOKE_TEST_RUN].ray
    assert (ray.num_workers, ray.address) == (2, "local")


def test_a_value_that_is_wrong_costs_a_line() -> None:
    with pytest.raises(ConfigError, match=r"num_workers: got 0, expected"):
        smoke_test(workers=0)


def test_other_configs_have_no_such_keys() -> None:
    with pytest.raises(ConfigError, match=r"^size_gb: unknown key; "):
        load_experiment(resolve_short_keys({**config_with({}), "size_gb": 1}))


def test_a_smoke_test_needs_a_folder() -> None:
    overlay = yaml.safe_load(OVERLAY.read_text())
    overlay["defaults"]["ray"]["storage_path"] = "s3://bucket/prefix"
    with pytest.raises(ConfigError, match=r"^runs\.smoke-test\.ray\.storage_path: got s3://"):
        load_experiment(overlay)
