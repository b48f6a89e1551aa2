from pathlib import Path
from typing import Any

import pytest
from small_config import experiment_with

from moray.config.layout import check_gpus, dataset_execution, lay_out, lay_out_here, on_cores
from moray.config.schema.sections import Ray
from moray.errors import UserError


def test_each_gpu_gets_a_worker_and_a_cluster_without_one_gets_two() -> None:
    cases: list[tuple[dict[str, Any], int, int | None, int, int]] = [
        ({}, 0, 16, 2, 0),
        ({}, 1, 16, 1, 1),
        ({}, 8, 16, 8, 8),
        ({}, 6, 16, 4, 4),
        ({}, 3, None, 3, 3),
        ({}, 0, 1, 1, 0),
        ({"use_gpu": False}, 8, 16, 2, 0),
        ({"num_workers": 2}, 1, 16, 2, 0),
        ({"num_workers": 1}, 4, 16, 1, 1),
        ({"num_workers": 4, "resources_per_worker": {"GPU": 2}}, 8, 16, 4, 8),
        ({"resources_per_worker": {"GPU": 2}}, 8, 16, 4, 8),
        ({"num_workers": 2, "use_gpu": True}, 1, 16, 2, 2),
    ]
    for ray, gpus, batch_size, workers, used in cases:
        layout = lay_out(Ray(**ray), cores=16, gpus=gpus, batch_size=batch_size)
        found = (layout.num_workers, layout.num_gpus, layout.use_gpu)
        assert found == (workers, used, used > 0), (ray, gpus, batch_size)


@pytest.mark.parametrize(
    ("ray", "batch_size", "cores", "workers", "cpus"),
    [
        ({}, 4, 1, 1, 1),
        ({}, 4, 2, 1, 2),
        ({}, 4, 8, 1, 8),
        ({}, 4, 16, 1, 16),
        ({}, 4, 64, 4, 16),
        # Rows can't be divided by more workers.
        ({}, 2, 64, 2, 32),
        ({}, 5, 64, 1, 64),
        ({}, None, 64, 4, 16),
        ({"num_workers": 2}, 4, 8, 2, 4),
        ({"num_workers": 2}, 4, 1, 2, 1),
        ({"resources_per_worker": {"CPU": 4}}, 4, 8, 2, 4),
        ({"resources_per_worker": {"CPU": 4}}, 4, 2, 1, 4),
        ({"resources_per_worker": {"disk": 1}}, 4, 8, 1, 8),
        ({"num_workers": {"min": 1, "max": 3}}, 4, 8, 3, 2),
        ({"num_workers": 3, "resources_per_worker": {"CPU": 0.5}}, 4, 64, 3, 0.5),
        # No more than there are.
        ({}, 4, 1000, 4, 16),
    ],
)
def test_auto_is_all_cores_by_workers_of_at_most_sixteen(
    ray: dict[str, Any],
    batch_size: int | None,
    cores: int,
    workers: int,
    cpus: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("moray.machine.cores", lambda: 64)
    found = on_cores(Ray(**ray), "ray", cores, batch_size)
    assert (found.num_workers, found.shares["CPU"]) == (workers, cpus)
    assert found.shares == {**Ray(**ray).shares, "CPU": cpus}


def test_a_container_has_the_cores_whose_time_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("moray.machine.cores", lambda: 64)
    monkeypatch.setattr("moray.machine._QUOTA", tmp_path / "cpu.max")
    for quota, cpus in (("350000 100000", 3), ("max 100000", 16), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert on_cores(Ray(), "ray", 16).shares == {"CPU": cpus}


@pytest.mark.parametrize(
    ("ray", "gpus"), [({}, "0"), ({"address": "auto"}, ""), ({"num_workers": 2}, "0,1")]
)
def test_on_gpus_and_on_a_cluster_auto_is_one_core(
    ray: dict[str, Any], gpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    found = on_cores(Ray(**ray), "ray", 64)
    assert (found.num_workers, found.shares) == (Ray(**ray).num_workers, {"CPU": 1})


def test_one_core_gets_one_worker() -> None:
    assert lay_out(Ray(), cores=1, gpus=0, batch_size=16).num_workers == 1


@pytest.mark.parametrize(
    ("ray", "gpus", "note"),
    [
        (
            {"num_workers": 2},
            1,
            "using the CPU: 2 workers need a GPU each, available: 1; set ",
        ),
        ({}, 6, "using 4 of 6 GPUs: more workers wouldn't divide 16 rows evenly"),
        ({"num_workers": 1}, 2, "using 1 of 2 GPUs, because ray.num_workers is 1"),
    ],
)
def test_gpus_that_stay_unused_are_mentioned(ray: dict[str, Any], gpus: int, note: str) -> None:
    found = lay_out(Ray(**ray), cores=16, gpus=gpus, batch_size=16).note
    assert found is not None
    assert found.startswith(note)


@pytest.mark.parametrize(("ray", "gpus"), [({}, 0), ({}, 4), ({"use_gpu": False}, 4)])
def test_nothing_is_said_where_all_are_used_or_none_is_wanted(
    ray: dict[str, Any], gpus: int
) -> None:
    assert lay_out(Ray(**ray), cores=16, gpus=gpus, batch_size=16).note is None


def test_too_few_gpus_cost_one_line() -> None:
    layout = lay_out(Ray(num_workers=2, use_gpu=True), cores=16, gpus=1)
    with pytest.raises(UserError, match=r"^runs.x.ray.use_gpu: true with 2 workers needs 2 GPUs, "):
        check_gpus(layout, 1, "runs.x.ray")


def test_an_elastic_number_has_the_workers_of_a_machine_between_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for low, high, workers in ((1, 2, 2), (1, 8, 3), (4, 8, 4)):
        layout = lay_out_here(Ray(num_workers={"min": low, "max": high}))
        assert (layout.num_workers, layout.min_workers) == (workers, None)


def test_an_elastic_number_on_a_cluster_uses_gpus_if_there_are_enough_for_its_minimum() -> None:
    elastic = Ray(num_workers={"min": 2, "max": 4})
    found = lay_out(elastic, cores=16, gpus=2)
    assert (found.num_workers, found.min_workers, found.use_gpu) == (4, 2, True)
    assert not lay_out(elastic, cores=16, gpus=1).use_gpu


def test_a_dataset_is_read_where_a_run_that_trains_on_it_is_executed() -> None:
    """On a cluster if one of them is; those of `torchrun` are on no cluster of Ray."""
    tuned = {"model": {"run": "base"}, "dataset": "modules"}
    experiment = experiment_with(
        {
            "runs.tuned": tuned | {"ray": {"address": "10.0.0.1:6379"}},
            "runs.last": tuned | {"ray": {"address": "10.0.0.2:6379"}},
        }
    )
    execution = dataset_execution(experiment, "modules", 3)
    assert execution is not None
    assert (execution["run"], execution["ray"]["address"]) == ("tuned", "10.0.0.1:6379")
    assert execution["cores"] == 3
    assert dataset_execution(experiment, "notes", 3) is None
    launched = {"train": {"launcher": "torchrun"}}
    execution = dataset_execution(experiment_with({"runs.tuned": tuned | launched}), "modules", 3)
    assert execution is not None
    assert execution["run"] == "base"
