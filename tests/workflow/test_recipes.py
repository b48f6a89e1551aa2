"""The files of `config/recipes`: each is a sound config, and runs from data to samples."""

import json
import math
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_server import Hub, hub_server
from in_one_process import make_all, merged
from PIL import Image
from project import ROOT, Project
from recipe_hub import add_what_is_named

from moray.config.load import load_experiment, merge

CONFIG = ROOT / "config/config.yaml"
RECIPES = sorted((ROOT / "config/recipes").glob("*.yaml"))
# What two cores without a GPU can't do in seconds.
HERE: dict[str, dict[str, Any]] = {
    "train": {
        "max_steps": 4,
        "global_batch_size": 4,
        "eval_steps": 2,
        "eval_rows": 4,
        "launcher": "torchrun",
    },
    "ray": {"use_gpu": False, "num_workers": 1, "resources_per_worker": {"CPU": 1}},
    "evaluate": {"bootstrap_samples": 20, "max_documents": 8},
    "generate": {"num_samples": 2, "max_new_tokens": 8, "prompt_tokens": 8},
}
BLOCK = 256
# One of each way of training.
FOR_EACH_CHANGE = {"continued-pretraining", "llama-3.2-1b-qlora", "sft-dpo", "vit-images"}


def config_of(recipe: Path) -> dict[str, Any]:
    """The project's config with the recipe over it."""
    return merged([CONFIG, recipe])


def images(folder: Path) -> None:
    """A folder of images of two classes, of several sizes."""
    draw = random.Random(0)
    for number in range(40):
        for name, red in (("cat", 40), ("dog", 200)):
            file = folder / name / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            colour = (red + draw.randint(0, 40), draw.randint(0, 255), draw.randint(0, 255))
            Image.new("RGB", (40 + number % 9, 48), colour).save(file)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_is_complete_and_sound(recipe: Path) -> None:
    experiment = load_experiment(config_of(recipe))
    own = yaml.safe_load(recipe.read_text())
    runs = {name for name, run in own["runs"].items() if run}
    assert set(experiment.runs) == runs
    used = {name for run in experiment.runs.values() for name in run.datasets}
    assert used == set(own["datasets"])
    assert {experiment.base_model(run) for run in runs} == set(own["models"])
    # The commands at its head name the file itself.
    head = recipe.read_text().partition("\n\n")[0]
    assert f"--configfile config/recipes/{recipe.name}" in head


def test_all_recipes_together_are_planned(fresh: Project) -> None:
    shutil.copy(CONFIG, fresh.config)
    images(fresh.folder / "data/photos")
    files = [f"config/recipes/{recipe.name}" for recipe in RECIPES]
    planned = fresh.planned("eval", "generate", "--configfile", *files)
    for run in load_experiment(merged([CONFIG, *RECIPES])).runs:
        assert {f"finetune {run}", f"evaluate {run}"} <= planned


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hub_server(Hub()) as serving:
        yield serving


@pytest.fixture(scope="module")
def process(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """One process for all recipes: its libraries read the hub's address when they are imported."""
    environment = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path_factory.mktemp("hub-cache")),
        # The server knows LFS alone.
        "HF_HUB_DISABLE_XET": "1",
        "OMP_NUM_THREADS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with ProcessPoolExecutor(1, get_context("spawn")) as executor:
            yield executor


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            recipe,
            id=recipe.stem,
            marks=pytest.mark.long if recipe.stem in FOR_EACH_CHANGE else pytest.mark.release,
        )
        for recipe in RECIPES
    ],
)
def test_a_recipe_runs_end_to_end(
    recipe: Path, hub: Hub, process: Executor, tmp_path: Path
) -> None:
    config = config_of(recipe)
    add_what_is_named(hub, yaml.safe_load(recipe.read_text()), tmp_path / "hub")
    images(tmp_path / "data/photos")
    runs = load_experiment(config).runs
    for run in runs:
        here = HERE | ({"data": {"block_size": BLOCK}} if "data" in config["runs"][run] else {})
        config["runs"][run] = merge(config["runs"][run], here)
    process.submit(make_all, tmp_path, config).result()
    for run in runs:
        made = tmp_path / "results/runs" / run
        record = json.loads((made / "train.json").read_text())
        assert record["steps"] == HERE["train"]["max_steps"]
        scores = json.loads((made / "eval.json").read_text())
        before, after = (scores[which]["loss"]["value"] for which in ("base", "tuned"))
        assert math.isfinite(after)
        assert after != before
        assert len((made / "samples.jsonl").read_text().splitlines()) == 2
