"""Runs on pairs: the losses of an independent computation, under every engine and layout."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import write_adapter
from checkpoints import check_resumption
from engines import LORA, ON_TWO, check_losses, jobs_of, losses_alone, workers_of
from fleet import losses, train_all
from jobs import Make, job_maker
from plain import preference_losses_one_by_one
from present import needs
from small_model import EXECUTION
from transformers import GPT2Config, GPT2LMHeadModel

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Preference
from moray.config.schema.train import Adapter
from moray.tasks.preference.reference import reference
from moray.train.loop import train
from moray.workers.entry import Worker

SETTINGS = {
    "dpo": Preference(),
    "dpo, smoothed": Preference(label_smoothing=0.2, beta=0.5),
    "ipo": Preference(loss="ipo", beta=0.2),
    "hinge": Preference(loss="hinge"),
    "robust": Preference(loss="robust", label_smoothing=0.2),
    "sigmoid_norm": Preference(loss="sigmoid_norm", beta=5.0),
    "cpo": Preference(loss="cpo"),
    "simpo": Preference(loss="simpo", beta=2.0, simpo_gamma=1.0),
    "orpo": Preference(loss="orpo"),
    "dpo, with likelihood": Preference(rpo_alpha=0.5),
}
RUN = {
    "max_steps": 8,
    "global_batch_size": 16,
    "learning_rate": 1e-3,
    "eval_steps": 4,
    "save_steps": 8,
}


@pytest.fixture(scope="module")
def make_job(preferences: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Make]:
    """Makes `job_maker`s by the settings of the loss."""

    def make(loss: str = "dpo") -> Make:
        folder = tmp_path_factory.mktemp("jobs")
        settings = SETTINGS[loss]
        store = "reference" if settings.has_reference else "pairs"
        return job_maker(preferences, folder, store, preference=result_keys(settings))

    return make


@pytest.mark.parametrize(
    "loss",
    ["dpo", *(pytest.param(loss, marks=pytest.mark.long) for loss in SETTINGS if loss != "dpo")],
)
def test_losses_are_those_of_plain_transformers_with_both_models(
    loss: str, make_job: Callable[..., Make], alone: Worker
) -> None:
    job = make_job(loss)(**RUN)
    train(job, alone)
    expected = preference_losses_one_by_one(job)
    assert len(expected) == 8
    assert losses(job) == pytest.approx(expected, rel=1e-5)
    # Equal ones would say nothing of the updates.
    assert abs(expected[-1] - expected[0]) > 1e-3


@pytest.mark.long
def test_weights_in_bf16_have_the_losses_of_autocast(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    make = make_job()
    jobs = [make(name, **RUN, precision="bf16", weights=name) for name in ("fp32", "bf16")]
    for job in jobs:
        train(job, alone)
    assert losses(jobs[1]) == pytest.approx(losses(jobs[0]), rel=0.02)


@pytest.fixture(scope="module")
def with_dropout(preferences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores of `preferences` beside a GPT-2 whose dropout is the usual one."""
    folder = tmp_path_factory.mktemp("dropout")
    shutil.copytree(preferences / "model", folder / "model")
    vocabulary = json.loads((folder / "model/config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    # As many positions as half a row has tokens: no answer has more.
    config = GPT2Config(vocab_size=vocabulary, n_embd=64, n_layer=2, n_head=2, n_positions=64)
    assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0.1
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    shutil.copytree(preferences / "pairs", folder / "pairs")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.release)])
@pytest.mark.parametrize(
    "adapter",
    [
        None,
        Adapter(rank=4),
        Adapter(rank=4, base_dtype="bf16"),
        pytest.param(Adapter(rank=4, quantize_base="4bit"), marks=needs("quantized_base")),
        pytest.param(Adapter(rank=4, quantize_base="8bit"), marks=needs("quantized_base")),
        Adapter(rank=4, create_new_adapter=False),
        Adapter(rank=4, base_dtype="bf16", create_new_adapter=False),
        pytest.param(
            Adapter(rank=4, quantize_base="4bit", create_new_adapter=False),
            marks=needs("quantized_base"),
        ),
    ],
    ids=[
        *("full", "LoRA", "LoRA on bf16", "LoRA on 4 bits", "LoRA on 8 bits"),
        *("further", "further on bf16", "further on 4 bits"),
    ],
)
@pytest.mark.parametrize(
    "model", [pytest.param("preferences", marks=pytest.mark.release), "with_dropout"]
)
def test_the_model_and_its_reference_agree_before_the_first_step(
    model: str,
    adapter: Adapter | None,
    precision: str,
    tmp_path: Path,
    alone: Worker,
    request: pytest.FixtureRequest,
) -> None:
    folder = request.getfixturevalue(model)
    held: dict[str, Any] = {
        "precision": precision,
        "base_dtype": adapter.base_dtype if adapter else "fp32",
        "quantize_base": adapter.quantize_base if adapter else None,
    }
    (tmp_path / "pairs").symlink_to(folder / "pairs")
    if adapter and not adapter.create_new_adapter:
        write_adapter(folder / "model", tmp_path / "model", Adapter(rank=4))
        held["adapter"] = result_keys(adapter)
    else:
        (tmp_path / "model").symlink_to(folder / "model")
    reference(
        "name", tmp_path / "model", tmp_path / "pairs", tmp_path / "reference", held, EXECUTION
    )
    keys = result_keys(Preference())
    make = job_maker(tmp_path, tmp_path, "reference", preference=keys)
    job = make(adapter=adapter, max_steps=1, global_batch_size=16, precision=precision)
    train(job, alone)
    # In bf16, sums over rows of other shapes round differently.
    tolerance = 1e-6 if precision == "fp32" and held["base_dtype"] == "fp32" else 1e-3
    assert losses(job) == pytest.approx([math.log(2)], abs=tolerance)


@pytest.fixture(scope="module")
def alone_losses(make_job: Callable[..., Make], alone: Worker) -> dict[str, list[float]]:
    return losses_alone(make_job(), alone, RUN)


@pytest.mark.parametrize(
    ("launcher", "layouts"),
    [
        pytest.param("torchrun", ("2 x 4 x 2",), marks=pytest.mark.long),
        pytest.param("torchrun", ("1 x 16",), marks=pytest.mark.release),
        pytest.param("torchrun", ("2 x 4 x 2", LORA), marks=pytest.mark.release),
        pytest.param("torchrun", ("2 x 8",), marks=pytest.mark.release),
        pytest.param("torchrun", ("4 x 4",), marks=pytest.mark.release),
        pytest.param("ray", ("2 x 8", LORA), marks=pytest.mark.release),
    ],
)
def test_losses_are_those_of_a_single_process_at_each_step(
    launcher: str,
    layouts: tuple[str, ...],
    make_job: Callable[..., Make],
    alone_losses: dict[str, list[float]],
    tmp_path: Path,
) -> None:
    jobs = jobs_of(make_job(), ON_TWO, layouts, launcher, RUN)
    train_all([*jobs.values()], workers_of(layouts), launcher, tmp_path / "workers")
    check_losses(jobs, alone_losses)


@pytest.mark.long
def test_gradient_checkpointing_changes_nothing_but_rounding(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    make = make_job()
    kept, again = make("kept"), make("again", gradient_checkpointing=True)
    for job in (kept, again):
        train(job, alone)
    assert losses(again) == pytest.approx(losses(kept), rel=1e-6)


def test_a_resumed_run_ends_with_the_same_bits(
    make_job: Callable[..., Make], alone: Worker
) -> None:
    check_resumption(make_job(), alone, 4)
