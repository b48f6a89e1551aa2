"""One run on pairs, whoever computes it."""

from pathlib import Path

import pytest
from classified import DECODERS, ENCODERS
from engines import check_two_workers
from jobs import job_maker
from rewarded import prepare_pairs, text_pairs

from moray.config.schema.train import Adapter
from moray.workers.entry import Worker


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "adapters"),
    [
        ("Llama", (None,)),
        pytest.param("Llama", (None, Adapter(rank=4)), marks=pytest.mark.release),
        pytest.param("BERT", (None, Adapter(rank=4)), marks=pytest.mark.release),
    ],
)
def test_two_workers_have_the_losses_of_one_and_a_resumed_run_the_same_bits(
    name: str, adapters: tuple[Adapter | None, ...], alone: Worker, tmp_path: Path
) -> None:
    """Under DDP and FSDP2, with an adapter and without."""
    small = prepare_pairs(tmp_path / "small", text_pairs(90), (ENCODERS | DECODERS)[name]())
    reward = {"center_rewards_coefficient": 0.01}
    make = job_maker(small, tmp_path, "labelled", reward=reward)
    check_two_workers(make, alone, tmp_path, rel=1e-5, adapters=adapters, micro_batch_size=2)
