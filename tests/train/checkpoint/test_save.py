"""Checkpoints of one process, written beside the training."""

import errno
import multiprocessing
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checkpoints import are_equal, check_same_bits, tensors_of
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

from moray.errors import UserError
from moray.provenance.manifest import damaged_files, read_manifest
from moray.storage.folder import FolderStorage
from moray.storage.interface import Storage, folder_of, path_of
from moray.train.checkpoint.load import read_state
from moray.train.checkpoint.save import Saver
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.train.supervision import Request, Requests
from moray.workers.entry import Worker

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


def saved(storage: Storage, state: State) -> Path:
    """The checkpoint of step 10 with a state."""
    saver = Saver(storage, keep=2, timeout=60)
    saver.save(10, state, best=None)
    saver.finish()
    return storage.fetch(10)


def test_what_was_saved_is_read_back_bit_by_bit(storage: Storage) -> None:
    state = state_of(1)
    folder = saved(storage, state)
    assert storage.damaged_files(10) == []
    assert read_manifest(folder)["step"] == 10
    found = empty(state)
    read_state(folder, found)
    assert are_equal(found, state)
    listed = tensors_of(folder)
    assert listed.keys() == state.keys()
    assert torch.equal(listed["bias"], state["bias"])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing is written before this was called."""
    free = threading.Event()

    def wait(*arguments: Any, **options: Any) -> Any:
        assert free.wait(30)
        return save(*arguments, **options)

    monkeypatch.setattr("moray.train.checkpoint.save.save", wait)
    return free.set


def test_the_state_is_that_of_the_step_though_the_training_goes_on(
    storage: Storage, held: Callable[[], None]
) -> None:
    state = state_of(3)
    expected = {name: value.clone() for name, value in state.items()}
    saver = Saver(storage, keep=1, timeout=60)
    saver.save(1, state, best=None)
    for value in state.values():
        value.zero_()
    held()
    saver.finish()
    found = empty(state)
    read_state(storage.fetch(1), found)
    assert are_equal(found, expected)


def test_saving_does_not_wait_for_the_disk_and_finishing_does(
    storage: Storage, held: Callable[[], None]
) -> None:
    saver = Saver(storage, keep=1, timeout=60)
    saver.save(1, state_of(1), best=None)
    assert storage.steps() == []
    held()
    saver.finish()
    assert storage.steps() == [1]
    assert storage.damaged_files(1) == []


def test_one_is_there_for_good_before_the_next_is_begun(storage: Storage) -> None:
    saver = Saver(storage, keep=3, timeout=60)
    saver.finish()
    for step in (1, 2, 3):
        saver.save(step, state_of(step), best=None)
        assert set(range(1, step)) <= set(storage.steps())
    saver.finish()
    saver.finish()
    assert storage.steps() == [1, 2, 3]
    assert [storage.damaged_files(step) for step in (1, 2, 3)] == [[], [], []]


@pytest.mark.parametrize(("best", "kept"), [(None, [40, 50]), (20, [20, 40, 50])])
def test_the_newest_are_kept_and_the_best(
    best: int | None, kept: list[int], storage: Storage
) -> None:
    saver = Saver(storage, keep=2, timeout=60)
    for step in (10, 20, 30, 40, 50):
        saver.save(step, state_of(step), best)
        saver.finish()
    assert storage.steps() == kept


def test_a_write_that_fails_is_reported_and_leaves_no_checkpoint(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Path:
        raise OSError("no space left")

    saver = Saver(storage, keep=1, timeout=60)
    monkeypatch.setattr(type(storage), "commit", fail)
    saver.save(1, state_of(1), best=None)
    with pytest.raises(OSError, match="no space left"):
        saver.finish()
    assert storage.steps() == []


def test_a_disk_that_takes_no_folder_is_reported_as_full(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(storage: Storage, step: int) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(storage), "begin", fail)
    with pytest.raises(UserError, match="the disk is full after writing 0 bytes"):
        Saver(storage, keep=1, timeout=60).save(1, state_of(1), best=None)


@pytest.fixture(scope="module")
def forks() -> Any:
    """Makes processes that have all modules already, in a tenth of a second each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faults.points", "moray.train.loop"])
    return context


def fill_disk() -> None:
    """From now on, the kernel refuses to write more of a file, as it does with a quota."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def train_on_a_full_disk(job: RunSpec, worker: Worker, reported: Path) -> None:
    fill_disk()
    try:
        train(job, worker)
    except UserError as error:
        reported.write_text(str(error))


def be_one_of_two(folder: Path, rank: int, reported: Path) -> None:
    """Save with room on both workers' disks, then with none on the second one's."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    # As many as workers, so that each writes one.
    state = {name: torch.full((40_000,), 1.0) for name in ("one", "other")}
    saver = Saver(FolderStorage(folder), keep=2, timeout=60)
    saver.save(1, state, best=None)
    saver.finish()
    if rank == 1:
        fill_disk()
    saver.save(2, {name: value + 1 for name, value in state.items()}, best=None)
    try:
        saver.finish()
    except UserError as error:
        reported.write_text(str(error))
    dist.destroy_process_group()


def is_of_full_disk(line: str, folder: Path) -> bool:
    return line.startswith(f"{folder}: the disk is full after writing ") and line.endswith(
        " bytes; free some space and run the same command again"
    )


@pytest.mark.long
def test_a_training_whose_disk_is_full_goes_on_from_the_checkpoint_before(
    make_job: Any, alone: Worker, tmp_path: Path, forks: Any
) -> None:
    undisturbed, job = make_job("undisturbed"), make_job()
    train(undisturbed, alone)
    Requests(job.work.parent).ask(Request.STOP)
    assert train(job, alone)["steps"] == 1
    folder, reported = folder_of(job.work), tmp_path / "reported"
    process = forks.Process(target=train_on_a_full_disk, args=(job, alone, reported), daemon=True)
    process.start()
    process.join(300)
    assert process.exitcode == 0
    assert is_of_full_disk(reported.read_text(), folder)
    # Nothing half-written is left.
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]
    assert damaged_files(path_of(folder, 1)) == []
    assert train(job, alone)["resumed_from"] == 1
    check_same_bits(job, undisturbed)


@pytest.mark.long
def test_if_the_disk_of_one_worker_is_full_all_are_reported_and_nothing_is_left(
    tmp_path: Path, forks: Any
) -> None:
    reported = [tmp_path / f"reported-{rank}" for rank in range(2)]
    workers = [
        forks.Process(target=be_one_of_two, args=(tmp_path, rank, reported[rank]), daemon=True)
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0]
    folder = tmp_path / "checkpoints"
    assert all(is_of_full_disk(file.read_text(), folder) for file in reported)
    sound = path_of(folder, 1)
    assert [*folder.iterdir()] == [sound]
    assert damaged_files(sound) == []
    assert len(list(sound.glob("*.distcp"))) == 2
    assert all(bool((value == 1).all()) for value in tensors_of(sound).values())
