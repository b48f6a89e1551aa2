"""Load a checkpoint into a transformers model."""

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel

from moray.config.schema import Adapter
from moray.errors import UserError
from moray.model.adapter import add_adapter
from moray.model.load import load_model
from moray.provenance.manifest import damaged_files
from moray.train.checkpoints.saver import read_state
from moray.train.engine.statistics import statistics_of
from moray.train.engine.strategies.state import trained_parameters


def trained_model(
    start: Path,
    checkpoint: Path,
    adapter: Adapter | None,
    load: Callable[[Path], PreTrainedModel] = load_model,
) -> PreTrainedModel:
    """The model that a run started from, with the weights of a checkpoint.

    Args:
        start: Hugging Face folder that the run started from.
        checkpoint: saved by any strategy and number of workers.
        adapter: the run's `adapter` section; if given, the model has adapters in addition.
        load: loads the model that the run started from.

    Raises:
        UserError: if the checkpoint has missing or damaged files.
    """
    if damaged := damaged_files(checkpoint):
        raise UserError(
            str(checkpoint),
            f"missing or damaged files: {', '.join(damaged)}",
            "rerun with --forcerun finetune_run",
        )
    model = load(start)
    if adapter is not None:
        add_adapter(model, adapter, seed=0)
    tensors = {**trained_parameters(model), **statistics_of(model)}
    state = {name: value.detach() for name, value in tensors.items()}
    read_state(checkpoint, state, alone=True)
    return model
