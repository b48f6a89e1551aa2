"""What a job needs, for executors whose jobs run elsewhere: on Slurm, Kubernetes or a cloud.

It follows from the config, and from the sizes of the job's inputs, which are there once it can
start. All are upper estimates.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

from moray.config.layout import Stage, gpus, num_workers_here
from moray.config.schema.experiment import Experiment
from moray.config.schema.models import BaseModelSource, HubModel, RunModel, ScratchModel
from moray.model.shapes import Shapes, num_parameters, shapes_in
from moray.provenance.manifest import MANIFEST
from moray.provenance.space import bytes_below
from moray.train.memory import FLOAT, checkpoint_bytes, footprint_of

_MB = 10**6
# MB of a process with its libraries, of a local Ray, and of a thread that reads or tokenises.
_PROCESS, _RAY, _THREAD = 2000, 2000, 700
# With activations and logits, in relation to weights, gradients and the optimizer's state.
_WITH_ACTIVATIONS = 1.5
# A stage loads a model, and once more to compare it with transformers; an export has a checkpoint.
_MODELS = 3
# Of a model that isn't fetched yet.
_UNKNOWN = 32_000
# What a stage writes, in relation to what it reads: Parquet is compressed, rows of tokens aren't.
_WRITTEN = 5


@dataclass(frozen=True)
class Job:
    """A job of a rule.

    Attributes:
        inputs: the files that it waits for.
        threads: its cores.
        run: the run whose workers it starts.
        workers: the section of this run that says how many; None if it starts none.
        least_mb: memory that it needs whatever the size of its inputs is.
    """

    experiment: Experiment
    inputs: tuple[str, ...]
    threads: int
    run: str = ""
    workers: Stage | None = None
    least_mb: int = 0

    @cached_property
    def input_mb(self) -> float:
        """The size of its inputs, in MB; of a manifest, that of its folder.

        Raises:
            FileNotFoundError: if one doesn't exist yet.
        """
        return sum(map(_size, self.inputs)) / _MB

    def memory_mb(self) -> int:
        """Its memory, in MB."""
        if self.workers is None:
            need = _PROCESS + _THREAD * self.threads + _MODELS * self._weights_mb
            return max(self.least_mb, ceil(need))
        workers = num_workers_here(self.experiment, self.run, self.workers, self.threads)
        if self.workers == "train":
            given = self.experiment.runs[self.run].train.mem_mb
            if given != "auto":
                return given
            return ceil(_PROCESS + _RAY + workers * (_PROCESS + self._training_mb(workers)))
        # Where workers are elsewhere, this job compares what they computed.
        return ceil(_PROCESS + _RAY + (workers or 1) * (_PROCESS + _MODELS * self._weights_mb))

    def minutes(self, least: int, mb_per_minute: int | None = None) -> int:
        """Its time, in minutes; that of a training is in the config.

        Args:
            least: what it has for small inputs.
            mb_per_minute: how much of its inputs each thread reads; None if the time doesn't
                depend on their size.
        """
        if self.workers == "train":
            return self.experiment.runs[self.run].train.runtime
        speed = mb_per_minute and mb_per_minute * self.threads
        return ceil(least + (self.input_mb / speed if speed else 0))

    def disk_mb(self) -> int:
        """What its machine needs to have free if it shares no folder with others, in MB."""
        size = _PROCESS + _WRITTEN * self.input_mb
        if self.workers == "train":
            section = self.experiment.runs[self.run]
            # One is written while the others are there, and the best one is kept besides.
            kept = section.train.save_total_limit + 2
            size += kept * checkpoint_bytes(section.train, section.adapter, self._shapes) / _MB
        return ceil(size)

    @cached_property
    def _shapes(self) -> Shapes:
        """The shapes of the weights of its largest model; none if there is none."""
        folders = sorted({Path(file).parent for file in self.inputs if _is_manifest(file)})
        return max(map(shapes_in, folders), key=num_parameters, default={})

    @property
    def _weights_mb(self) -> float:
        """The size of its largest model in fp32, in MB."""
        if not self.input_mb:
            # Asked for first, since it raises an error if an input doesn't exist yet.
            return 0.0
        return FLOAT * num_parameters(self._shapes) / _MB

    def _training_mb(self, workers: int) -> float:
        """Memory of a worker of a training, in MB."""
        if workers == 0:
            return 0.0
        section = self.experiment.runs[self.run]
        if gpus(self.experiment, self.run, "train"):
            # While weights are read, and while they are saved.
            return 2 * self._weights_mb
        held = footprint_of(section.train, section.adapter, self._shapes, workers)
        return _WITH_ACTIVATIONS * held.total / _MB


def unread_model_mb(section: BaseModelSource, files: Iterable[str]) -> int:
    """Memory, in MB, of a job that makes a base model, whose weights aren't in a stage's form yet.

    Args:
        files: the user's, of a model that is in a folder.
    """
    if isinstance(section, HubModel):
        return _UNKNOWN
    if isinstance(section, ScratchModel | RunModel):
        return 0
    # In bf16, mostly.
    return ceil(_PROCESS + 2 * _MODELS * sum(map(os.path.getsize, files)) / _MB)


def _is_manifest(file: str) -> bool:
    return Path(file).name == MANIFEST


def _size(file: str) -> int:
    """The bytes of a file; of a manifest, of the whole folder."""
    size = os.stat(file).st_size
    return bytes_below(Path(file).parent) if _is_manifest(file) else size
