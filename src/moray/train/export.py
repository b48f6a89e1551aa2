"""From a checkpoint to a model that transformers loads."""

from pathlib import Path

from transformers import PreTrainedModel

from moray.errors import UserError
from moray.model.load import load_model
from moray.provenance.manifest import damaged_files
from moray.train.strategies import DistributedDataParallelStrategy


def trained_model(start: Path, checkpoint: Path) -> PreTrainedModel:
    """The model that a run started from, with the weights of a checkpoint.

    Raises:
        UserError: if the checkpoint is not whole.
    """
    if damaged := damaged_files(checkpoint):
        raise UserError(
            str(checkpoint),
            f"got a checkpoint that lacks or has damaged {', '.join(damaged)}",
            "rerun with --forcerun finetune_run",
        )
    model = load_model(start)
    DistributedDataParallelStrategy(rank=0, world_size=1).export(checkpoint, model)
    return model
