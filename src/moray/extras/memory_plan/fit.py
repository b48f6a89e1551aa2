"""The rows of a micro-batch under `micro_batch_size: auto`."""

from moray.config.schema.train import MICRO_BATCH_SIZE
from moray.errors import UserError
from moray.model.folder import whole_model_and_adapters
from moray.provenance.manifest import read_manifest
from moray.train.spec import RunSpec


def rows_that_fit(spec: RunSpec, workers: int, capacity: int) -> int:
    """The most rows of a micro-batch that a GPU has memory for, as it is planned; at least 1.

    Depends on the run and the kind of GPU alone, never on the memory that is free, so that a
    resumed run computes as before. Of a run that can't be planned, as many as on a CPU.

    Args:
        spec: the run.
        workers: number of workers.
        capacity: bytes of the memory of a GPU.
    """
    # Takes a while to import, and drivers only hand this function on.
    from moray.extras.memory_plan.advice import usable
    from moray.extras.memory_plan.demand import Demand
    from moray.extras.memory_plan.setup import PLANNED, Setup

    manifest = read_manifest(spec.store)
    if manifest["task"] not in PLANNED:
        return MICRO_BATCH_SIZE
    setup = Setup(
        model="train.micro_batch_size",
        folder=whole_model_and_adapters(spec.start)[0],
        block_size=manifest["block_size"],
        settings=spec.settings,
        adapter=spec.adapter,
        workers=workers,
        device="cuda",
        task=manifest["task"],
        task_settings=spec.task_settings,
        packing=manifest["recipe"].get("packing", True),
    )
    limit = usable(capacity / 1e9)
    share = -(-spec.settings.global_batch_size // workers)
    try:
        at_once = Demand(setup.with_train(micro_batch_size=share))
        if at_once.total(share) <= limit:
            return share
    except UserError:
        # It can't be run without values.
        return MICRO_BATCH_SIZE
    # Gradients are accumulated then.
    return max(1, at_once.under(setup.with_train(micro_batch_size=1)).largest(limit))
