"""What would end a run later is reported before it begins."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from object_store import object_store
from stored import Place

from moray.config.schema.sections import Ray
from moray.config.schema.train import Adapter, Train
from moray.errors import UserError
from moray.model.shapes import Shapes
from moray.storage.folder import FolderStorage
from moray.train.checks import missing_requirements

CORES = len(os.sched_getaffinity(0))
SMALL: Shapes = {"embed_tokens": (100, 10), "layer.q_proj": (10, 30), "layer.norm": (10,)}
HUGE: Shapes = {"layer.q_proj": (10**6, 10**6)}
# More checkpoints than any disk takes, of however small a model.
ENDLESS = 10**15


def found(
    folder: Path,
    shapes: Shapes | None = SMALL,
    adapter: Adapter | None = None,
    results: Path | None = None,
    train: dict[str, Any] | None = None,
    work: Path | None = None,
    **ray: Any,
) -> list[UserError]:
    """The faults of a run of one worker without a GPU, but for what is given."""
    settings = {"num_workers": 1, "use_gpu": False, "storage_path": str(folder / "state"), **ray}
    return missing_requirements(
        "tuned",
        Train(**(train or {})),
        adapter,
        Ray(**settings),
        shapes,
        results or folder / "results",
        work,
    )


def paths(faults: list[UserError]) -> list[str]:
    return [fault.path for fault in faults]


def shared(workers: int) -> dict[str, Any]:
    """Workers that share a CPU."""
    return {"num_workers": workers, "resources_per_worker": {"CPU": 1 / workers}}


@pytest.mark.parametrize("shapes", [SMALL, None])
@pytest.mark.parametrize("adapter", [None, Adapter()])
def test_a_sound_run_has_no_fault(
    tmp_path: Path, shapes: Shapes | None, adapter: Adapter | None
) -> None:
    assert found(tmp_path, shapes, adapter, num_workers=CORES) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_a_temporary_folder_that_is_too_long_for_ray_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """As many clusters give one to each job; Ray fails once it starts, after other stages."""
    most = 107 - len(f"/ray/session_2026-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store")
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setenv(variable, "/" + "x" * most)
    (fault,) = found(tmp_path)
    assert str(fault).startswith(f"TMPDIR: got /{'x' * most}, which is too long for the paths of")
    assert found(tmp_path, train={"launcher": "torchrun"}) == []
    monkeypatch.setenv(variable, "/" + "x" * (most - 1))
    assert found(tmp_path) == []


def test_more_cpus_than_there_are_are_reported(tmp_path: Path) -> None:
    (fault,) = found(tmp_path, num_workers=CORES + 1)
    assert str(fault) == (
        f"runs.tuned.ray.num_workers: {CORES + 1} workers with 1 CPU each need {CORES + 1} CPU, "
        f"but this machine has {CORES}; lower num_workers or resources_per_worker.CPU"
    )
    assert found(tmp_path, **shared(2 * CORES)) == []


def test_a_library_that_is_not_installed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = {"strategy": "deepspeed", "optimizer": "adamw_8bit"}
    assert found(tmp_path, train=train, include_dashboard=True) == []
    for name in ("deepspeed", "bitsandbytes", "aiohttp_cors"):
        monkeypatch.setitem(sys.modules, name, None)
    adapter = Adapter(quantize_base="4bit")
    assert [
        str(fault)
        for fault in found(tmp_path, adapter=adapter, train=train, include_dashboard=True)
    ] == [
        "runs.tuned.train.strategy: deepspeed is not installed; "
        "pip install 'moray[deepspeed]', or choose another strategy",
        "runs.tuned.ray.include_dashboard: true needs packages that are not installed; "
        "pip install 'moray[dashboard]', or set it to false",
        "runs.tuned.adapter.quantize_base: 4bit needs bitsandbytes, which is not installed; "
        "pip install 'moray[qlora]', or remove it",
        "runs.tuned.train.optimizer: adamw_8bit needs bitsandbytes, which is not installed; "
        "pip install 'moray[qlora]', or set it to adamw",
    ]
    assert found(tmp_path, adapter=adapter, train=train, address="auto") == []
    assert found(tmp_path, adapter=Adapter(quantize_base="8bit")) == []


def test_more_gpus_than_there_are_are_reported(tmp_path: Path) -> None:
    there = torch.cuda.device_count()
    (fault,) = found(tmp_path, use_gpu=True, **shared(there + 1))
    assert str(fault) == (
        f"runs.tuned.ray.use_gpu: true with {there + 1} workers needs {there + 1} GPUs, "
        f"available: {there}; set it to auto, or lower num_workers"
    )


@pytest.mark.parametrize("use_gpu", ["auto", False])
def test_gpus_that_nobody_insists_on_are_not_missed(tmp_path: Path, use_gpu: Any) -> None:
    assert found(tmp_path, use_gpu=use_gpu, **shared(100)) == []


def test_a_cluster_elsewhere_is_not_held_against_this_machine(tmp_path: Path) -> None:
    elsewhere: dict[str, Any] = {"address": "auto", "num_workers": 10_000, "use_gpu": True}
    assert found(tmp_path, **elsewhere) == []
    assert paths(found(tmp_path, HUGE, Adapter(), **elsewhere)) == [str(tmp_path)]


def memory(faults: list[UserError]) -> list[UserError]:
    return [fault for fault in faults if " GB each " in fault.problem]


def free() -> int:
    """Bytes of memory that a run may take here, as the line about it says."""
    faults = memory(found(Path("/tmp"), HUGE))
    match = re.search(r"only ([\d,.]+) GB of memory are free", faults[0].problem)
    assert match
    return int(float(match[1].replace(",", "")) * 1e9)


def test_a_model_that_memory_does_not_take_is_reported_with_the_numbers(tmp_path: Path) -> None:
    # 10^12 weights, gradients and twice as many moments, of 4 bytes each.
    (fault,) = memory(found(tmp_path, HUGE, **shared(3)))
    assert str(fault).startswith(
        "runs.tuned.ray.num_workers: 3 workers need 16,000.0 GB each for weights, gradients"
    )
    assert str(fault).endswith("; lower it, set train.strategy: fsdp2, or train an adapter")
    assert 0 < free() <= psutil.virtual_memory().total


def test_what_counts_is_the_memory_of_all_workers(tmp_path: Path) -> None:
    shapes: Shapes = {"layer.weight": (free() // 16 // 2, 1)}
    assert memory(found(tmp_path, shapes, **shared(1))) == []
    assert len(memory(found(tmp_path, shapes, **shared(4)))) == 1


@pytest.mark.parametrize(
    ("train", "fits"),
    [
        ({"strategy": "ddp"}, False),
        ({"strategy": "fsdp2"}, True),
        ({"strategy": "deepspeed", "deepspeed": {"zero_stage": 1}}, False),
        ({"strategy": "deepspeed", "deepspeed": {"zero_stage": 3}}, True),
    ],
)
def test_strategies_that_spread_a_model_need_less(
    tmp_path: Path, train: dict[str, Any], fits: bool
) -> None:
    """Half of the memory for one, on four workers: twice of it unless it is spread."""
    shapes: Shapes = {"layer.weight": (free() // 16 // 2, 1)}
    assert (memory(found(tmp_path, shapes, train=train, **shared(4))) == []) is fits


def test_beside_an_adapter_the_base_takes_its_weights_alone(tmp_path: Path) -> None:
    """A model whose weights take half of the memory, or twice of it if they are trained."""
    side = int((free() / 8) ** 0.5)
    shapes: Shapes = {"layer.q_proj": (side, side)}
    assert memory(found(tmp_path, shapes, Adapter(rank=1))) == []
    assert len(memory(found(tmp_path, shapes))) == 1
    twice: Shapes = {"layer.q_proj": (2 * side, 2 * side)}
    assert len(memory(found(tmp_path, twice, Adapter(rank=1)))) == 1


@pytest.mark.parametrize("below", ["", "/deep/state"])
def test_a_file_in_the_place_of_the_storage_is_reported(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    # With all permissions, which say nothing here.
    file.touch(0o777)
    (fault,) = found(tmp_path, storage_path=f"{file}{below}")
    assert str(fault) == (
        f"runs.tuned.ray.storage_path: can't write to {file}{below}, because {file} is not a "
        "writable folder; change its permissions or choose another folder"
    )


def test_a_file_in_the_place_of_the_results_is_reported(tmp_path: Path) -> None:
    (tmp_path / "results").touch()
    (fault,) = found(tmp_path)
    assert fault.path == "the working directory"
    assert f"{tmp_path}/results is not a writable folder" in fault.problem


@pytest.mark.long
def test_an_object_store_that_cannot_be_written_to_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store() as bucket:
        assert found(tmp_path, storage_path=f"{bucket}/state") == []
        (fault,) = found(tmp_path, storage_path="s3://no-such-bucket/state")
    assert str(fault).startswith(
        "runs.tuned.ray.storage_path: can't write to s3://no-such-bucket/state ("
    )
    assert "NoSuchBucket" in str(fault)
    # Nothing listens there any more.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    (fault,) = found(tmp_path, storage_path="s3://bucket/state")
    assert "Could not connect to the endpoint URL" in str(fault)
    assert "\n" not in str(fault)


CLOSED = """
import os, sys
from pathlib import Path
from moray.config.schema.sections import Ray
from moray.config.schema.train import Train
from moray.train.checks import missing_requirements

# Permissions don't count for root.
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
ray = Ray(num_workers=1, storage_path=sys.argv[1], use_gpu=False)
for fault in missing_requirements("tuned", Train(), None, ray, None, Path("/tmp")):
    print(fault)
"""


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_that_may_not_be_written_to_or_looked_into_is_reported(
    tmp_path: Path, mode: int
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "state").mkdir()
    closed.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, str(closed / "new")],
        capture_output=True,
        text=True,
        check=False,
    )
    closed.chmod(0o700)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"runs.tuned.ray.storage_path: can't write to {closed}/new, because ")


def needed(faults: list[UserError]) -> list[int]:
    """Bytes that the disks lack, by the lines about them."""
    matches = (re.search(r"bytes free, expected ([\d,]+)$", f.problem) for f in faults)
    return [int(match[1].replace(",", "")) for match in matches if match]


WHOLE = 100 * 10 + 10 * 30 + 10
# A pair of matrices beside the one that is no embedding.
ADDED = 8 * (10 + 30)


@pytest.mark.parametrize(
    ("train", "adapter", "expected"),
    [
        # Weights and two moments of each kept checkpoint and of the one that is written; a model.
        ({}, None, (ENDLESS + 1) * 12 * WHOLE + 4 * WHOLE),
        ({"load_best_model_at_end": True}, None, (ENDLESS + 2) * 12 * WHOLE + 4 * WHOLE),
        # Moments are in fp32 there in any case.
        ({"optimizer": "adamw_8bit"}, None, (ENDLESS + 1) * 12 * WHOLE + 4 * WHOLE),
        ({"weights": "bf16"}, None, (ENDLESS + 1) * 10 * WHOLE + 4 * WHOLE),
        ({}, Adapter(rank=8), (ENDLESS + 1) * 12 * ADDED + 4 * WHOLE),
        # No more than the run has.
        ({"max_steps": 100 * 10**14 + 1}, None, (10**14 + 1) * 12 * WHOLE + 4 * WHOLE),
    ],
)
def test_a_disk_that_does_not_take_the_checkpoints_is_reported_with_what_they_take(
    tmp_path: Path, train: dict[str, Any], adapter: Adapter | None, expected: int
) -> None:
    faults = found(tmp_path, adapter=adapter, train={"save_total_limit": ENDLESS, **train})
    assert paths(faults) == [str(tmp_path)]
    assert needed(faults) == [expected]


def test_checkpoints_that_a_run_has_already_need_no_room_again(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path / "state/tuned/fingerprint")
    weights = {step: storage.staging(storage.begin(step)) / "weights" for step in (10, 20)}
    weights[10].write_bytes(bytes(5000))
    attempt = weights[10].parent.name
    storage.commit(10, attempt, storage.persist(attempt, [weights[10]]))
    weights[20].write_bytes(bytes(7000))
    size = sum(file.stat().st_size for file in storage.fetch(10).iterdir())
    whole = (ENDLESS + 1) * 12 * WHOLE + 4 * WHOLE
    # Its own, those of a fingerprint that isn't its, and those that may be its.
    for work, there_already in {storage.work: size, tmp_path / "other": 0, None: size}.items():
        faults = found(tmp_path, train={"save_total_limit": ENDLESS}, work=work)
        assert needed(faults) == [whole - there_already]


SHARED_MEMORY = Path("/dev/shm")


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="needs a second file system")
def test_a_checkpoint_may_be_removed_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a training of the same run that is under way."""
    place = Place(tmp_path / "state/tuned/fingerprint")
    for step in (10, 20):
        place.write(step)
    stat, before = os.stat, place.files()

    def removing(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path) == before[0]:
            shutil.rmtree(Path(path).parent)
        return stat(path, *arguments, **options)

    monkeypatch.setattr("os.stat", removing)
    found(tmp_path)
    assert place.files() == before[2:]


def test_each_disk_has_to_take_its_part(tmp_path: Path) -> None:
    results = SHARED_MEMORY / "moray-results"
    if SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("it is the same disk")
    faults = found(tmp_path, HUGE, results=results)
    disks = {str(tmp_path): 3 * 12 * 10**12, str(SHARED_MEMORY): 4 * 10**12}
    reported = [fault for fault in faults if needed([fault])]
    assert dict(zip(paths(reported), needed(reported), strict=True)) == disks


def test_shapes_that_are_not_known_yet_are_not_guessed(tmp_path: Path) -> None:
    assert found(tmp_path, None, train={"save_total_limit": ENDLESS}) == []


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    (tmp_path / "results").touch()
    workers = max(CORES, torch.cuda.device_count()) + 1
    train = {"save_total_limit": ENDLESS}
    faults = found(tmp_path, HUGE, train=train, num_workers=workers, use_gpu=True)
    assert paths(faults)[:4] == [
        "runs.tuned.ray.num_workers",
        "runs.tuned.ray.use_gpu",
        "runs.tuned.ray.storage_path",
        "the working directory",
    ]
    assert len(needed(faults)) == 1
    assert len(memory(found(tmp_path, HUGE, train=train, num_workers=workers))) == 1
    assert shutil.disk_usage(tmp_path).total < needed(faults)[0]


@pytest.mark.parametrize("kind", ["varlen", "flex"])
def test_attention_of_gpus_is_refused_where_workers_have_none(tmp_path: Path, kind: str) -> None:
    train = {"attention": kind}
    for ray in ({"use_gpu": False}, {"use_gpu": False, "address": "auto"}):
        (fault,) = found(tmp_path, train=train, **ray)
        assert str(fault) == (
            f"runs.tuned.train.attention: {kind} needs GPUs: in PyTorch, it has no backward pass "
            "on CPUs; set it to auto, or train on GPUs"
        )
    assert found(tmp_path, train=train, address="auto", use_gpu="auto") == []
    assert found(tmp_path, train={"attention": "eager"}) == []


def test_a_base_in_fewer_bits_needs_less_memory(tmp_path: Path) -> None:
    side = int((free() / 3) ** 0.5)
    shapes: Shapes = {"layer.q_proj": (side, side)}
    assert len(memory(found(tmp_path, shapes, Adapter(rank=1)))) == 1
    assert memory(found(tmp_path, shapes, Adapter(rank=1, base_dtype="bf16"))) == []
    twice: Shapes = {"layer.q_proj": (3 * side // 2, 3 * side // 2)}
    assert len(memory(found(tmp_path, twice, Adapter(rank=1, base_dtype="bf16")))) == 1
    assert memory(found(tmp_path, twice, Adapter(rank=1, quantize_base="4bit"))) == []
