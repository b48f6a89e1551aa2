"""Load a checkpoint into a transformers model."""

from pathlib import Path

from transformers import PreTrainedModel

from moray.config.schema import Adapter
from moray.errors import UserError
from moray.model.adapter import add_adapter
from moray.model.load import load_model
from moray.provenance.manifest import damaged_files
from moray.train.checkpoints.saver import read_state
from moray.train.engine.strategies.state import trained_parameters


def trained_model(start: Path, checkpoint: Path, adapter: Adapter | None) -> PreTrainedModel:
    """The model that a run started from, with the weights of a checkpoint.

    Args:
        start: Hugging Face folder that the run started from.
        checkpoint: saved by any strategy and number of workers.
        adapter: the run's `adapter` section; if given, the model has adapters in addition.

    Raises:
        UserError: if the checkpoint has missing or damaged files.
    """
    if damaged := damaged_files(checkpoint):
        raise UserError(
            str(checkpoint),
            f"missing or damaged files: {', '.join(damaged)}",
            "rerun with --forcerun finetune_run",
        )
    model = load_model(start)
    if adapter is not None:
        add_adapter(model, adapter, seed=0)
    state = {name: value.detach() for name, value in trained_parameters(model).items()}
    read_state(checkpoint, state, alone=True)
    return model
