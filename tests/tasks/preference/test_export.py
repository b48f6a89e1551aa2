"""Exports of runs on pairs: how far the loss may be from that of plain transformers."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from exported import CFG
from jobs import job_maker

from moray.config.schema.base import result_keys
from moray.config.schema.losses import Preference
from moray.errors import UserError
from moray.proofs.comparison import read_proof
from moray.provenance.manifest import MANIFEST
from moray.stages.export import export
from moray.storage.interface import folder_of, path_of
from moray.train.loop import train
from moray.workers.entry import Worker

REFUSED = pytest.raises(UserError, match="in loss of the exported model on validation rows: ")


class Trained:
    """A run of four steps on pairs, whose last validation loss can be changed before an export."""

    def __init__(self, preferences: Path, folder: Path, worker: Worker, precision: str) -> None:
        settings = result_keys(Preference(beta=1.0))
        make = job_maker(preferences, folder, "reference", preference=settings)
        job = make("run", max_steps=4, precision=precision)
        facts = train(job, worker)
        record = {
            "checkpoint": str(path_of(folder_of(job.work), facts["exported_step"])),
            "fingerprint": "0123",
            "continued_from": None,
            "adapter": None,
            "train": {},
            "inputs": {"stores": {"data": str(preferences / "reference")}},
            "software": {},
            "preference": settings,
            **facts,
        }
        (folder / "train.json").write_text(json.dumps(record))
        self._start, self._folder = preferences / "model", folder
        self._lines = (job.work / "history.jsonl").read_text().splitlines()

    def export(self, loss: float | None = None) -> dict[str, Any]:
        """The comparison of the exported model's loss."""
        history, folder = self._folder / "history.jsonl", self._folder / "model"
        lines = [*map(json.loads, self._lines)]
        for line in lines:
            if "eval_sample" in line and loss is not None:
                line["eval_sample"]["loss"] = loss
        history.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        files, cfg = (self._folder / "train.json", history), CFG | {"chat_template": None}
        export(self._start, *files, [self._start / MANIFEST], folder, cfg, "text")
        (compared,) = [one for one in read_proof(folder) if "exported" in one["what"]]
        return compared


@pytest.mark.parametrize(("share", "expected"), [(0.9, nullcontext()), (1.5, REFUSED)])
def test_in_bf16_a_loss_of_pairs_may_be_off_by_the_rounding_of_their_tokens(
    share: float,
    expected: AbstractContextManager[Any],
    preferences: Path,
    tmp_path: Path,
    alone: Worker,
) -> None:
    trained = Trained(preferences, tmp_path, alone, "bf16")
    known = trained.export()
    # More than is allowed of means over tokens.
    assert known["rounding"] > 0.02 * known["plain"]
    with expected:
        assert trained.export(known["plain"] + share * known["rounding"])["holds"]


def test_in_fp32_it_may_not(preferences: Path, tmp_path: Path, alone: Worker) -> None:
    trained = Trained(preferences, tmp_path, alone, "fp32")
    known = trained.export()
    assert known["rounding"] == 0
    with REFUSED:
        trained.export(known["plain"] * 1.001)
