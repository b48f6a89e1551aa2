"""One run, whoever computes it: launchers, strategies and layouts give the same losses."""

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import tensors_of
from engines import (
    ADAPTER,
    ENGINES,
    LAYOUTS,
    LORA,
    ON_TWO,
    Jobs,
    check_losses,
    jobs_of,
    losses_alone,
    workers_of,
)
from fleet import losses, train_all
from jobs import Make, job_maker

from moray.model.adapter import merged, save_adapter
from moray.model.load import load_model
from moray.model.shapes import NEW_TOKENS
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.loss import TokenLoss, has_plain_head, make_batch
from moray.tasks.language.rows import StoredSplit
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train.checkpoint.load import trained_model
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

Train = Callable[[str, tuple[str, ...]], Jobs]

RUN = {
    "max_steps": 12,
    "global_batch_size": 16,
    "learning_rate": 3e-3,
    "eval_steps": 6,
    "save_steps": 4,
    "save_total_limit": 10,
}


@pytest.fixture(scope="module")
def make_job(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """See `job_maker`."""
    return job_maker(small, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def alone_losses(make_job: Make, alone: Worker) -> dict[str, list[float]]:
    return losses_alone(make_job, alone, RUN)


@pytest.fixture(scope="module")
def trained(make_job: Make, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains every engine in these layouts, all on the same workers, when first asked for them."""
    jobs: dict[tuple[str, tuple[str, ...]], Jobs] = {}

    def train(launcher: str, layouts: tuple[str, ...]) -> Jobs:
        if (launcher, layouts) not in jobs:
            # Checkpoints don't depend on the launcher.
            few = {"save_steps": 12, "save_total_limit": 1} if launcher == "ray" else {}
            # Blocks that are computed again have the same losses.
            again = {"gradient_checkpointing": "offload"} if LORA in layouts else {}
            found = jobs_of(make_job, engines_on(layouts), layouts, launcher, RUN | few | again)
            jobs[launcher, layouts] = found
            folder = tmp_path_factory.mktemp(launcher)
            train_all([*found.values()], workers_of(layouts), launcher, folder)
        return jobs[launcher, layouts]

    return train


def engines_on(layouts: tuple[str, ...]) -> list[str]:
    """On two workers, HSDP has one copy, as FSDP2 has."""
    return [*ENGINES] if layouts == ("4 x 4",) else ON_TWO


# What is trained on one start of the workers; for those under `layouts`, others stand.
STARTS = {
    "long": [
        ("torchrun", ("2 x 8",)),
        ("torchrun", ("2 x 4 x 2", LORA)),
        ("torchrun", ("4 x 4",)),
    ],
    "release": [
        ("torchrun", ("1 x 16",)),
        ("ray", ("1 x 16",)),
        ("ray", ("2 x 8",)),
        ("ray", ("2 x 4 x 2", LORA)),
        ("ray", ("4 x 4",)),
    ],
}


@pytest.mark.parametrize(
    ("launcher", "layouts"),
    [
        pytest.param(*start, marks=getattr(pytest.mark, mark))
        for mark, starts in STARTS.items()
        for start in starts
    ],
)
def test_losses_are_those_of_a_single_process_at_each_step(
    launcher: str,
    layouts: tuple[str, ...],
    trained: Train,
    alone_losses: dict[str, list[float]],
) -> None:
    jobs = trained(launcher, layouts)
    assert len(jobs) == len(engines_on(layouts)) * len(layouts)
    assert len(alone_losses["whole"]) == len(alone_losses["lora"]) == 12
    check_losses(jobs, alone_losses)


def test_every_layout_is_trained_under_both_launchers() -> None:
    for launcher in ("torchrun", "ray"):
        starts = [layouts for by, layouts in itertools.chain(*STARTS.values()) if by == launcher]
        assert sorted(itertools.chain(*starts)) == sorted(LAYOUTS)


@pytest.fixture(scope="module")
def saved(trained: Train) -> Jobs:
    """Jobs on two workers, those with adapters among them, with their checkpoints."""
    jobs = trained("torchrun", ("2 x 8",)) | trained("torchrun", ("2 x 4 x 2", LORA))
    return {key: job for key, job in jobs.items() if key[1] in ("2 x 8", LORA)}


def held_out_loss(model: Any, tokens: Path) -> float:
    split = StoredSplit(tokens, "test")
    batch = make_batch(np.asarray(split.rows))
    with torch.no_grad():
        total = TokenLoss(model, has_plain_head(model))(batch)
    return float(total) / len(batch.targets)


@pytest.mark.long
def test_exports_have_the_same_held_out_loss(saved: Jobs, small: Path) -> None:
    for kind in ("2 x 8", LORA):
        found = []
        for (_, layout), job in saved.items():
            if layout == kind:
                last = path_of(folder_of(job.work), 12)
                model = trained_model(small / "model", last, job.adapter)
                found.append(held_out_loss(model.eval(), job.store))
        assert found == pytest.approx([found[0]] * len(found), rel=1e-5)
        before = held_out_loss(load_model(small / "model"), job.store)
        assert found[0] < 0.998 * before


@pytest.mark.long
def test_copies_of_a_sharded_model_are_saved_once(trained: Train, small: Path) -> None:
    jobs = trained("torchrun", ("4 x 4",))
    found = []
    for engine in ("fsdp2", "hsdp"):
        last = path_of(folder_of(jobs[engine, "4 x 4"].work), 12)
        found.append(tensors_of(last))
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_merged_adapters_are_base_and_adapters_side_by_side(
    saved: Jobs, small: Path, tmp_path: Path
) -> None:
    for (engine, layout), job in saved.items():
        if layout == LORA:
            last = path_of(folder_of(job.work), 12)
            beside = trained_model(small / "model", last, ADAPTER).eval()
            save_adapter(beside, ADAPTER, tmp_path / engine, torch.float32)
            whole = merged(load_model(small / "model"), tmp_path / engine)
            assert held_out_loss(whole, job.store) == pytest.approx(
                held_out_loss(beside, job.store), rel=1e-5
            )


@pytest.mark.long
def test_rows_of_new_tokens_are_trained_beside_adapters_as_by_a_single_process(
    small: Path, make_job: Make, alone: Worker, tmp_path: Path
) -> None:
    """Tokens that are in every row stand for new ones."""
    start = Path(shutil.copytree(small / "model", tmp_path / "model"))
    tokens = load_tokenizer(start)("def return\n")["input_ids"]
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | {NEW_TOKENS: sorted({*tokens})}))
    run = RUN | {"max_steps": 6, "save_steps": 6}
    one = replace(make_job("new alone", adapter=ADAPTER, **run), start=start)
    train(one, alone)
    made = jobs_of(make_job, ["ddp"], (LORA,), "new", run)
    jobs = {key: replace(job, start=start) for key, job in made.items()}
    train_all([*jobs.values()], 2, "torchrun", tmp_path)
    check_losses(jobs, {"lora": losses(one)})
    before = load_model(start).get_input_embeddings().weight
    for (engine, _), job in jobs.items():
        last = path_of(folder_of(job.work), 6)
        save_adapter(trained_model(start, last, ADAPTER), ADAPTER, tmp_path / engine, torch.float32)
        after = merged(load_model(start), tmp_path / engine).get_input_embeddings().weight
        changed = (after != before).any(1).nonzero().flatten().tolist()
        assert changed == sorted({*tokens}), engine


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.release)])
def test_a_checkpoint_goes_on_under_any_strategy_on_any_number_of_workers(
    workers: int, saved: Jobs, make_job: Make, tmp_path: Path
) -> None:
    """Each strategy takes up its own checkpoint, and DDP's is taken up by all, theirs by DDP."""
    moved: list[tuple[str, RunSpec, RunSpec]] = []
    for (engine, layout), job in saved.items():
        others = {engine}
        if workers == 1:
            others |= {"ddp", *(ON_TWO if engine == "ddp" else ())} if layout != LORA else set()
        elif engine == "fsdp2":
            others |= {"hsdp"}
        for other in sorted(others):
            keys = RUN | ENGINES[other] | {"micro_batch_size": 4}
            name = f"{engine} {layout} by {other} on {workers}"
            new = make_job(name, adapter=job.adapter, **keys)
            shutil.copytree(folder_of(job.work), folder_of(new.work))
            for step in (8, 12):
                shutil.rmtree(path_of(folder_of(new.work), step))
            moved.append((name, job, new))
    train_all([new for *_, new in moved], workers, "torchrun", tmp_path / "workers")
    for name, job, new in moved:
        assert len(losses(new)) == 8, name
        assert losses(new) == pytest.approx(losses(job)[4:], rel=1e-5), name
