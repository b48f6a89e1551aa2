"""Compare a run's first loss and gradient with plain transformers', before the model changes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from moray.proofs.budget import TOO_LARGE, num_affordable, stage_seconds
from moray.proofs.comparison import Comparison, collect, conclude, transformers_version
from moray.proofs.figures import Figures, autocast_as_in_run, tolerance
from moray.rows.loader import Shard, from_memory
from moray.rows.order import Mixture
from moray.rows.store import Rows, StoredRows
from moray.train.history import History
from moray.train.spec import Part, RunSpec
from moray.train.step import few_held_out, loss_of_rows
from moray.train.strategies import Strategy
from moray.train.task import Task
from moray.workers.collectives import from_first_worker
from moray.workers.entry import Worker

_MOST_TOKENS = 2048


class FirstStep:
    """What plain transformers computes of a run's first step; all workers make an equal one."""

    def __init__(
        self,
        spec: RunSpec,
        worker: Worker,
        strategy: Strategy,
        task: Task,
        mixture: Mixture,
        history: History | None,
        flops: float,
        num_rows: int,
    ) -> None:
        """Compare the loss of the first rows.

        Args:
            history: of the first worker.
            flops: FLOPs of a forward and a backward pass for a row.
            num_rows: number of rows in the whole run.

        Raises:
            UserError: on all workers, if the losses differ and `proofs` is `refuse`.
        """
        self._spec, self._history = spec, history
        self._num_steps = num_rows // mixture.global_batch_size
        stored = all((part.store / "train.rows").is_file() for part in spec.parts)
        step = _first_step(spec.parts, mixture) if stored else _held_out(spec.parts, mixture)
        self._rows = step[: from_first_worker(lambda: self._count(worker, task, flops, num_rows))]
        here = 0.0
        if len(self._rows):
            here = loss_of_rows(strategy, task, self._rows, spec.settings, worker)
        # The gradient of an adapter follows from its random weights; routers are balanced over all
        # documents, which are computed one by one here.
        has_plain_gradient = spec.adapter is None and not spec.settings.router_aux_loss
        with_gradient = stored and len(self._rows) == len(step) and has_plain_gradient

        def compared() -> Figures:
            return self._compared(task, worker, here, with_gradient)

        self._plain = from_first_worker(compared)

    def check_gradient(self, norm: Tensor) -> None:
        """Compare the norm of the first step's gradient, unless only a part of it was computed.

        Raises:
            UserError: on all workers, if it differs and `proofs` is `refuse`.
        """
        if (plain := self._plain.gradient_norm) is None:
            return
        compared = Comparison(
            "gradient norm of the first step",
            norm.item(),
            plain,
            transformers_version(),
            len(self._rows),
            1e-3 if self._spec.settings.precision == "fp32" else 5e-2,
        )
        from_first_worker(lambda: self._record(compared, step=1))

    def _count(self, worker: Worker, task: Task, flops: float, num_rows: int) -> int:
        """How many rows are compared."""
        spec, device = self._spec, worker.device
        seconds = stage_seconds(flops * num_rows, device, spec.threads)
        count = num_affordable(spec.start, seconds, device, flops, spec.threads)
        return min(count, max(1, _MOST_TOKENS // task.units_per_row))

    def _compared(self, task: Task, worker: Worker, here: float, with_gradient: bool) -> Figures:
        spec, what = self._spec, "loss before the first step"
        bits = spec.adapter.quantize_base if spec.adapter else None
        if not len(self._rows):
            self._record(Comparison(what, skipped=TOO_LARGE), step=0)
            return Figures(0.0)
        precision, device = spec.settings.precision, worker.device
        plain = Figures(0.0)

        def compare() -> Iterator[Comparison]:
            nonlocal plain
            with autocast_as_in_run(precision, device):
                plain = task.plain(spec.start, spec.start, self._rows, bits, device, with_gradient)
            most = tolerance(precision, bits, device)
            rounding = 0.0 if precision == "fp32" else plain.rounding
            yield Comparison(
                what, here, plain.loss, transformers_version(), len(self._rows), most, rounding
            )

        (comparison,) = collect(what, compare)
        self._record(comparison, step=0)
        return plain

    def _record(self, comparison: Comparison, step: int) -> None:
        """Tell the user of a comparison, and keep it in the history."""
        assert self._history, "only the first worker compares"
        records = conclude([comparison], self._spec.proofs, "training")
        self._history.append(
            step=step, num_steps=self._num_steps, note=comparison.line, proof=records
        )


def loss_of_few(
    spec: RunSpec,
    strategy: Strategy,
    task: Task,
    validation: Mapping[str, StoredRows],
    worker: Worker,
) -> dict[str, Any]:
    """The loss of a few held-out rows, which the exported model must have again."""
    dataset, split = next(iter(validation.items()))
    numbers = few_held_out(task, split, spec.settings)
    loss = loss_of_rows(strategy, task, split.rows[numbers], spec.settings, worker)
    return {"dataset": dataset, "rows": numbers.tolist(), "loss": loss}


def _first_step(parts: Sequence[Part], mixture: Mixture) -> Rows:
    splits = [StoredRows(part.store, "train") for part in parts]
    return next(from_memory(splits, mixture, Shard(0, 1, 0, 1)))


def _held_out(parts: Sequence[Part], mixture: Mixture) -> Rows:
    """Rows of a run whose own are made on the fly."""
    return StoredRows(parts[0].store, "test").rows[: mixture.global_batch_size]
