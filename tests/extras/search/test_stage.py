"""Searches with real trainings, of a small model, on workers of torchrun."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from fleet import until
from run_stage import stage_command

from moray.config.schema.base import execution_keys, result_keys
from moray.config.schema.sections import Data, Ray
from moray.config.schema.train import Train
from moray.errors import UserError
from moray.extras.search.stage import search
from moray.train.history import evaluations

TRIALS, STEPS = 8, 40
RATE = {"high": 0.1, "integer": False, "log": True, "low": 1e-5}
SPACE = {"train.learning_rate": RATE, "train.weight_decay": {"choices": [0.0, 0.01, 0.1]}}


def settings(**train: Any) -> Train:
    own = {"max_steps": STEPS, "global_batch_size": 8, "logging_steps": 1, "eval_steps": 10}
    return Train(**{**own, "save_steps": 5, "launcher": "torchrun", "precision": "fp32", **train})


def arguments(
    folder: Path, small: Path, trials: int = TRIALS, space: Any = SPACE, **train: Any
) -> dict[str, Any]:
    """Those of the stage, with its results and its state in a folder."""
    whole = settings(**train)
    result = result_keys(whole)
    for key in space:
        del result[key.removeprefix("train.")]
    results = folder / "results/searches/tuned"
    results.mkdir(parents=True, exist_ok=True)
    return {
        "start": small / "model",
        "stores": [small / "tokens"],
        "best": results / "best.yaml",
        "trials": results / "trials.jsonl",
        "cfg": {
            "adapter": None,
            "datasets": {"data": 1.0},
            "search": {"seed": 0, "space": space, "trials": trials},
            "train": result,
        },
        "execution": {
            "data": execution_keys(Data(block_size=64)),
            "ray": execution_keys(Ray(storage_path=str(folder / "state"), num_workers=1)),
            "train": execution_keys(whole),
            "proofs": "refuse",
            "tracking": [],
        },
    }


def lines(folder: Path) -> list[dict[str, Any]]:
    """What came of each trial, without the time that it took."""
    text = (folder / "results/searches/tuned/trials.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        del line["seconds"]
    return found


def best(folder: Path) -> dict[str, Any]:
    overlay = yaml.safe_load((folder / "results/searches/tuned/best.yaml").read_text())
    found: dict[str, Any] = overlay["runs"]["tuned"]["train"]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    search("tuned", **arguments(folder, small))
    return folder


def started(folder: Path, small: Path) -> subprocess.Popen[bytes]:
    command = stage_command("search", run="tuned", **arguments(folder, small))
    return subprocess.Popen(command, stderr=(folder / "reported").open("ab"))


def kill_at(folder: Path, small: Path, finished: int, step: int) -> dict[Path, str]:
    """Kill everything once so many trials are recorded and the next one is at a step.

    Returns:
        The histories of trainings under way that have a checkpoint, with their first lines, which
        have the time at which they were begun.
    """

    def under_way() -> list[Path]:
        found = folder.glob("state/tuned/*/history.jsonl")
        return [path for path in found if not path.with_name("trial.json").exists()]

    def there() -> bool:
        recorded = len(list(folder.glob("state/tuned/*/trial.json")))
        reached = (evaluations(path.parent, until=STEPS) for path in under_way())
        return recorded >= finished and any(max(losses, default=0) >= step for losses in reached)

    process = started(folder, small)
    until(lambda: process.poll() is not None or there())
    assert process.poll() is None, (folder / "reported").read_text()
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    psutil.wait_procs(family[1:], timeout=60)
    return {
        path: path.read_text().splitlines()[0]
        for path in under_way()
        if list(path.parent.glob("checkpoints/step-????????"))
    }


@pytest.mark.release
def test_a_search_that_is_killed_twice_comes_to_the_same(
    undisturbed: Path, tmp_path: Path, small: Path
) -> None:
    records: dict[Path, int] = {}
    begun: dict[Path, str] = {}
    for finished, step in ((1, 10), (4, 10)):
        begun |= kill_at(tmp_path, small, finished, step)
        for path in tmp_path.glob("state/tuned/*/trial.json"):
            records.setdefault(path, path.with_name("history.jsonl").stat().st_mtime_ns)
    process = started(tmp_path, small)
    assert process.wait() == 0, (tmp_path / "reported").read_text()
    assert lines(tmp_path) == lines(undisturbed)
    assert best(tmp_path) == best(undisturbed)
    # What was recorded wasn't trained again.
    assert len(records) >= 4
    histories = {path: path.with_name("history.jsonl").stat().st_mtime_ns for path in records}
    assert histories == records
    # What was under way went on from its checkpoint.
    assert {path: path.read_text().splitlines()[0] for path in begun} == begun
    assert begun


@pytest.mark.release
def test_trials_differ_in_their_values_and_the_best_is_that_of_the_lowest_loss(
    undisturbed: Path,
) -> None:
    found = lines(undisturbed)
    assert [line["number"] for line in found] == list(range(TRIALS))
    assert len({line["values"]["train.learning_rate"] for line in found}) == TRIALS
    assert {line["state"] for line in found} == {"finished", "pruned"}
    finished = [line for line in found if line["state"] == "finished"]
    assert all(line["step"] == STEPS for line in finished)
    assert all(line["step"] in (10, 20, 30) for line in found if line not in finished)
    lowest = min(finished, key=lambda line: line["validation_loss"])
    assert best(undisturbed) == {
        "learning_rate": lowest["values"]["train.learning_rate"],
        "weight_decay": lowest["values"]["train.weight_decay"],
    }


@pytest.mark.release
def test_more_trials_continue_a_search(undisturbed: Path, small: Path) -> None:
    before = lines(undisturbed)
    states = {
        path: path.stat().st_mtime_ns for path in undisturbed.glob("state/tuned/*/trial.json")
    }
    search("tuned", **arguments(undisturbed, small, trials=TRIALS + 1))
    assert lines(undisturbed)[:TRIALS] == before
    assert len(lines(undisturbed)) == TRIALS + 1
    assert all(path.stat().st_mtime_ns == time for path, time in states.items())


@pytest.mark.release
def test_a_trial_that_diverges_ends_itself_and_not_the_search(tmp_path: Path, small: Path) -> None:
    space = {"train.learning_rate": {"choices": [1e-3, 1e30]}}
    values = {"max_grad_norm": 1e30, "warmup_ratio": 0.0, "max_steps": 6}
    given = arguments(tmp_path, small, trials=4, space=space, **values)
    search("tuned", **given)
    found = [json.loads(line) for line in given["trials"].read_text().splitlines()]
    states = {line["values"]["train.learning_rate"]: line["state"] for line in found}
    assert states == {1e-3: "finished", 1e30: "diverged"}
    assert best(tmp_path) == {"learning_rate": 1e-3}
    # Equal values are one training.
    assert len(list(tmp_path.glob("state/tuned/*/trial.json"))) == 2


@pytest.mark.release
def test_if_every_trial_diverges_the_user_is_told(tmp_path: Path, small: Path) -> None:
    space = {"train.learning_rate": {"choices": [1e30]}}
    values = {"max_grad_norm": 1e30, "warmup_ratio": 0.0, "max_steps": 6}
    given = arguments(tmp_path, small, trials=2, space=space, **values)
    with pytest.raises(UserError, match=r"^runs\.tuned\.search\.space: no trial trained to its en"):
        search("tuned", **given)
    assert not given["best"].exists()
