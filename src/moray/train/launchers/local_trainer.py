"""Ray Train in a Ray that lives as long as the run, without what only a cluster needs."""

from typing import Any

from ray.train import Result
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import RayTrainCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

# One hands out datasets of the trainer's own, which it isn't given; the other frees what a dead
# controller had reserved, which ends with this Ray.
_FOR_A_CLUSTER = (DatasetsCallback, PlacementGroupCleanerCallback)


class LocalTrainer(TorchTrainer):
    """A `TorchTrainer` that starts three processes fewer; each takes two seconds of a core.

    Ray has no setting for them, so this overrides what is private to Ray Train.
    """

    def _initialize_and_run_controller(
        self, *, callbacks: list[RayTrainCallback], **others: Any
    ) -> Result:
        others["scaling_policy"] = _WithoutAutoscaler(self.scaling_config)
        needed = [callback for callback in callbacks if not isinstance(callback, _FOR_A_CLUSTER)]
        return super()._initialize_and_run_controller(callbacks=needed, **others)


class _WithoutAutoscaler(FixedScalingPolicy):
    """So many workers, without telling an autoscaler, which would take a process to tell it."""

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Nobody is to be told."""

    def _maybe_send_resource_request(self) -> None:
        """Nobody is to be told."""
