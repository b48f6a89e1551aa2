"""The matrix: whatever is killed, whenever, under any engine, the model has the same bytes."""

import random
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.workflows import (
    CLASSIFICATION,
    IMAGES,
    REWARD,
    STEPS,
    TOKEN_CLASSIFICATION,
    Changes,
    check_equal,
    prepare,
    rows_by_step,
    run,
    run_and_signal,
)
from project import Project

pytestmark = pytest.mark.release

VICTIMS = ("worker", "driver", "raylet", "snakemake")
ENGINES: dict[str, Changes] = {
    "ddp": {},
    "fsdp2": {"train.strategy": "fsdp2"},
    "zero-2": {"train.strategy": "deepspeed", "train.deepspeed": {"zero_stage": 2}},
    "images": {
        "data": {"augmentation": {"shift": 1, "flip": True}},
        "train.global_batch_size": 8,
    },
    "lora": {"adapter": {"rank": 4}},
    "qlora": {"adapter": {"rank": 4, "quantize_base": "4bit"}, "train.strategy": "fsdp2"},
    "stream": {"data.loader": "stream", "ray.resources_per_worker": {"CPU": 0.5}},
    "mixture": {},
    "preference": {},
    "kto": {"kto": {"undesirable_weight": 1.2}, "train.strategy": "fsdp2"},
    "simpo": {"preference": {"loss": "simpo", "beta": 2.0}},
    "classification": {"train.global_batch_size": 8},
    # Its teacher is what it starts from.
    "distillation": {"distillation": {"teacher": "tiny", "top_k": 8}},
    "token classification": {"train.global_batch_size": 8},
    "reward": {"train.global_batch_size": 8},
    "muon": {"train.optimizer": "muon", "train.strategy": "fsdp2"},
    "adafactor": {"train.optimizer": "adafactor", "train.learning_rate": 1e-2},
}
PAIRS: Changes = {"runs": {"only": {"model": "tiny", "dataset": "pairs"}}}
# Of engines whose run isn't that of a language model on one dataset.
SECTIONS: dict[str, Changes] = {
    "images": IMAGES,
    "mixture": {"runs": {"only": {"model": "tiny", "dataset": {"functions": 0.7, "modules": 0.3}}}},
    "preference": PAIRS,
    "simpo": PAIRS,
    "kto": {"runs": {"only": {"model": "tiny", "dataset": "answers"}}},
    "classification": CLASSIFICATION,
    "token classification": TOKEN_CLASSIFICATION,
    "reward": REWARD,
}


def moments(engine: str, victim: str) -> list[int]:
    """Steps by a seed; and under DDP, the first moment at which the victim is there."""
    draw = random.Random(f"{engine} {victim}")
    steps = draw.sample(range(STEPS - 50), 4 if engine == "ddp" else 1)
    return [-1, *sorted(steps)] if engine == "ddp" else steps


MATRIX = [
    (engine, victim, step)
    for engine in ENGINES
    for victim in VICTIMS
    for step in moments(engine, victim)
]
KILLED_WHOLE = ("ddp", "images", "mixture", "preference", "classification", "reward")


@pytest.fixture(scope="module")
def prepared() -> dict[str, tuple[Project, Project]]:
    """By engine, a project that is ready to train and one that was trained; made when asked for."""
    return {}


@pytest.fixture
def copy_and_undisturbed(
    prepared: dict[str, tuple[Project, Project]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Project, Project]]:
    engine = request.param
    if engine not in prepared:
        folder = tmp_path_factory.mktemp(engine) / "ready"
        ready = prepare(folder, ENGINES[engine], SECTIONS.get(engine))
        undisturbed = ready.copy(ready.folder.parent / "undisturbed")
        done = run(undisturbed)
        assert done.returncode == 0, done.stderr
        prepared[engine] = ready, undisturbed
    ready, undisturbed = prepared[engine]
    copy = ready.copy(Path(tmp_path_factory.mktemp("copy"), "killed"))
    yield copy, undisturbed
    shutil.rmtree(copy.folder)


# tests/workflow kills a whole workflow of a language model too.
@pytest.mark.parametrize("copy_and_undisturbed", KILLED_WHOLE, indirect=True)
def test_a_workflow_of_which_everything_is_killed_goes_on_by_the_same_command(
    copy_and_undisturbed: tuple[Project, Project],
) -> None:
    killed, undisturbed = copy_and_undisturbed
    assert run_and_signal(killed, "everything", STEPS // 4, signal.SIGKILL).returncode != 0
    again = run(killed)
    assert again.returncode == 0, again.stderr
    assert re.search(r"resumed from step [1-9]", again.stderr)
    check_equal(killed, undisturbed)
    assert sorted(rows_by_step(undisturbed)) == list(range(STEPS))


@pytest.mark.parametrize(
    ("copy_and_undisturbed", "victim", "step"), MATRIX, indirect=["copy_and_undisturbed"]
)
def test_what_is_killed_ends_with_the_bytes_and_rows_of_an_undisturbed_run(
    copy_and_undisturbed: tuple[Project, Project], victim: str, step: int
) -> None:
    killed, undisturbed = copy_and_undisturbed
    first = run_and_signal(killed, victim, step, signal.SIGKILL)
    # Ray replaces a worker by itself, and workers may come to the end without their raylet; all
    # else takes the same command again.
    if victim != "raylet":
        assert bool(first.returncode) == (victim != "worker"), first.stderr
    if first.returncode:
        again = run(killed)
        assert again.returncode == 0, again.stderr
    check_equal(killed, undisturbed)
    assert sorted(rows_by_step(undisturbed)) == list(range(STEPS))
