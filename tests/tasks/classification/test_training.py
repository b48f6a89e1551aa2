"""One run on labelled texts, whoever computes it."""

from pathlib import Path

import pytest
from classified import DECODERS, ENCODERS, opinions, prepare
from engines import check_two_workers
from jobs import job_maker

from moray.config.schema.train import Adapter
from moray.workers.entry import Worker


@pytest.mark.release
@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_two_workers_have_the_losses_of_one_and_a_resumed_run_the_same_bits(
    name: str, alone: Worker, tmp_path: Path
) -> None:
    """Under DDP and FSDP2, with an adapter and without."""
    small = prepare(tmp_path / "small", opinions(90), (ENCODERS | DECODERS)[name]())
    make = job_maker(small, tmp_path, "labelled")
    adapters = (None, Adapter(rank=4))
    check_two_workers(make, alone, tmp_path, rel=1e-5, adapters=adapters, micro_batch_size=2)
