"""What can't be trained on images costs one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fleet import losses
from jobs import Make
from present import present

from moray.config import extras
from moray.errors import UserError
from moray.rows.store import StoredRows
from moray.storage.interface import folder_of, path_of
from moray.tasks.images.classifier import fault_of_bf16_on_cpu, load_classifier
from moray.train.checkpoint.continuation import _check_tensors
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.train.statistics import statistics_of
from moray.train.task import task_of
from moray.workers.entry import Worker


def test_a_resnet_has_no_gradient_checkpointing(make_resnet_job: Make, alone: Worker) -> None:
    job = make_resnet_job("checkpointing", gradient_checkpointing=True)
    with pytest.raises(UserError, match=r"^train\.gradient_checkpointing: a resnet model doesn't"):
        train(job, alone)


def test_a_vit_has_gradient_checkpointing(make_vit_job: Make, alone: Worker) -> None:
    job, plain = make_vit_job("checkpointing", gradient_checkpointing=True), make_vit_job("plain")
    for one in (job, plain):
        train(one, alone)
    assert losses(job) == pytest.approx(losses(plain), rel=1e-5)


def test_convolutions_are_not_trained_in_bf16_on_cpus(make_resnet_job: Make, alone: Worker) -> None:
    """PyTorch's gradients of small maps would hold what was in memory before."""
    with pytest.raises(UserError, match=r"^train\.precision: bf16 can't be used on CPUs: "):
        train(make_resnet_job("bf16", precision="bf16"), alone)
    with pytest.raises(UserError, match=r"^train\.weights: bf16 can't be used on CPUs: "):
        train(make_resnet_job("weights", precision="auto", weights="bf16"), alone)
    assert train(make_resnet_job("auto", precision="auto"), alone)["precision"] == "fp32"


def test_patches_are_trained_in_bf16(make_vit_job: Make, alone: Worker) -> None:
    kinds = ["fp32", *present(extras.WEIGHTS)]
    jobs = [make_vit_job(f"bf16 {kind}", precision="bf16", weights=kind) for kind in kinds]
    assert fault_of_bf16_on_cpu(load_classifier(jobs[0].start)) is None
    for job in jobs:
        assert train(job, alone)["precision"] == "bf16"
        assert losses(job) == pytest.approx(losses(jobs[0]), rel=0.05)


def test_a_single_image_is_too_few_for_statistics_of_a_single_pixel(
    resnet: Path, tmp_path: Path
) -> None:
    task = task_of(resnet / "pixels", {})
    module = task.loss_module(task.load(resnet / "model", torch.float32, None)).train()
    rows = StoredRows(resnet / "pixels", "train").rows[:1].copy()
    small = np.zeros(1, [("pixels", "u1", (3, 4, 4)), ("label", "<u4"), ("filled", "u1")])
    small["filled"] = rows["filled"]
    with pytest.raises(UserError, match=r"^train\.micro_batch_size: a forward pass has a single"):
        module(task.batch(small, None))
    # In evaluation, it is enough.
    assert torch.isfinite(module.eval()(task.batch(small, None)))


def test_a_model_of_other_classes_is_refused(
    make_vit_job: Make, vit: Path, alone: Worker, tmp_path: Path
) -> None:
    job = make_vit_job("classes")
    shutil.copytree(vit / "model", tmp_path / "model")
    file = tmp_path / "model/config.json"
    config = json.loads(file.read_text())
    config["id2label"]["3"] = "three"
    file.write_text(json.dumps(config))
    model = load_classifier(tmp_path / "model")
    with pytest.raises(UserError, match=r"^model: its classes aren't those of the dataset: only"):
        task_of(job.store, {}).loss_module(model)


def test_statistics_are_among_the_tensors_that_a_checkpoint_must_have(
    make_resnet_job: Make, make_vit_job: Make, alone: Worker
) -> None:
    job, other = make_resnet_job("own", max_steps=2), make_vit_job("other")
    train(job, alone)
    given = path_of(folder_of(job.work), 2)
    _check_tensors("key", str(given), RunSpec("own", job.start, job.parts, job.settings))
    assert statistics_of(load_classifier(job.start))
    with pytest.raises(UserError, match=r"^key: the tensors in "):
        _check_tensors(
            "key", str(given), RunSpec("other", other.start, other.parts, other.settings)
        )


def test_a_model_without_batch_norm_has_no_statistics(vit: Path) -> None:
    assert statistics_of(load_classifier(vit / "model")) == {}
