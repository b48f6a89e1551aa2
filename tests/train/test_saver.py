"""Checkpoints of one process, written beside the training."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

from moray.provenance.manifest import damaged_files, read_manifest
from moray.train import checkpoint
from moray.train.saver import Saver, read_state

State = dict[str, Tensor]


def state_of(seed: int) -> State:
    """Tensors of several kinds and shapes."""
    torch.manual_seed(seed)
    return {
        "weight": torch.randn(3, 5),
        "weight/exp_avg": torch.randn(3, 5),
        "weight/step": torch.tensor(float(seed)),
        "bias": torch.randn(7),
        "counts": torch.randint(9, (4,)),
    }


def empty(state: State) -> State:
    return {name: torch.zeros_like(value) for name, value in state.items()}


def steps_in(folder: Path) -> list[int]:
    return sorted(map(checkpoint.step_of, folder.iterdir()))


def test_what_was_saved_is_read_back_bit_by_bit(tmp_path: Path) -> None:
    state = state_of(1)
    saver = Saver(tmp_path, keep=2)
    saver.save(10, state, best=None)
    saver.finish()
    folder = checkpoint.path_of(tmp_path, 10)
    assert damaged_files(folder) == []
    assert read_manifest(folder)["step"] == 10
    found = empty(state)
    read_state(folder, found)
    assert all(torch.equal(found[name], value) for name, value in state.items())
    listed = tensors_of(folder)
    assert listed.keys() == state.keys()
    assert torch.equal(listed["bias"], state["bias"])


def test_tensors_are_filled_in_place_so_that_a_model_has_them(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    weights = {name: value.detach().clone() for name, value in layer.named_parameters()}
    saver = Saver(tmp_path, keep=1)
    saver.save(1, weights, best=None)
    saver.finish()
    other = torch.nn.Linear(3, 2)
    read_state(
        checkpoint.path_of(tmp_path, 1),
        {name: value.detach() for name, value in other.named_parameters()},
        alone=True,
    )
    assert torch.equal(other.weight, weights["weight"])
    assert torch.equal(other.bias, weights["bias"])


def test_a_part_can_be_read(tmp_path: Path) -> None:
    state = state_of(2)
    saver = Saver(tmp_path, keep=1)
    saver.save(1, state, best=None)
    saver.finish()
    part = {"bias": torch.zeros(7)}
    read_state(checkpoint.path_of(tmp_path, 1), part)
    assert torch.equal(part["bias"], state["bias"])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing is written before this was called."""
    free = threading.Event()

    def wait(*arguments: Any, **options: Any) -> Any:
        assert free.wait(30)
        return save(*arguments, **options)

    monkeypatch.setattr("moray.train.saver.save", wait)
    return free.set


def test_the_state_is_that_of_the_step_though_the_training_goes_on(
    tmp_path: Path, held: Callable[[], None]
) -> None:
    state = state_of(3)
    expected = {name: value.clone() for name, value in state.items()}
    saver = Saver(tmp_path, keep=1)
    saver.save(1, state, best=None)
    for value in state.values():
        value.zero_()
    held()
    saver.finish()
    found = empty(state)
    read_state(checkpoint.path_of(tmp_path, 1), found)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_saving_does_not_wait_for_the_disk_and_finishing_does(
    tmp_path: Path, held: Callable[[], None]
) -> None:
    saver = Saver(tmp_path, keep=1)
    saver.save(1, state_of(1), best=None)
    assert not checkpoint.path_of(tmp_path, 1).exists()
    held()
    saver.finish()
    assert steps_in(tmp_path) == [1]
    assert damaged_files(checkpoint.path_of(tmp_path, 1)) == []


def test_one_is_there_for_good_before_the_next_is_begun(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=3)
    saver.finish()
    for step in (1, 2, 3):
        saver.save(step, state_of(step), best=None)
        for earlier in range(1, step):
            assert damaged_files(checkpoint.path_of(tmp_path, earlier)) == []
    saver.finish()
    saver.finish()
    assert steps_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    ("keep", "best", "kept"),
    [(1, None, [50]), (2, None, [40, 50]), (2, 20, [20, 40, 50]), (1, 50, [50]), (9, 10, None)],
)
def test_the_newest_are_kept_and_the_best(
    keep: int, best: int | None, kept: list[int] | None, tmp_path: Path
) -> None:
    saver = Saver(tmp_path, keep)
    for step in (10, 20, 30, 40, 50):
        saver.save(step, state_of(step), best if best is not None and step >= best else None)
        saver.finish()
    # The best was the newest when it was saved, and from then on it is named.
    assert steps_in(tmp_path) == (kept or [10, 20, 30, 40, 50])


def test_a_write_that_fails_is_told_and_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, step: int, temporary: Path) -> Path:
        raise OSError("no space left")

    saver = Saver(tmp_path, keep=1)
    monkeypatch.setattr("moray.train.checkpoint.commit", fail)
    saver.save(1, state_of(1), best=None)
    with pytest.raises(OSError, match="no space left"):
        saver.finish()
    assert checkpoint.newest(tmp_path, lambda path, names: None) is None
