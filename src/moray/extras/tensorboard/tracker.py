"""TensorBoard: a folder with an event file for each training."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from moray.tracking.interface import Point, Results, TrackedRun

FOLDER = Path("results/tensorboard")


@contextmanager
def open_run(run: TrackedRun) -> Iterator["TensorBoard"]:
    """Write a run's event file again from its beginning; see `Tracker`."""
    folder = FOLDER / f"{run.name}-{run.id}"
    for earlier in folder.glob("events.out.tfevents.*"):
        earlier.unlink()
    writer = EventFileWriter(str(folder))
    try:
        yield TensorBoard(writer, run)
    finally:
        writer.close()


class TensorBoard:
    """See `Tracker`."""

    def __init__(self, writer: EventFileWriter, run: TrackedRun) -> None:
        self._writer = writer
        self._add(text_pb("config", _code(json.dumps(run.config, indent=2))), 0)

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            self._add(_scalars(point.figures), point.step, point.time)
        self._writer.flush()

    def add_results(self, results: Results) -> None:
        self._add(_scalars(results.scores), results.step)
        for number, sample in enumerate(results.samples):
            parts = (f"**{name}**\n\n{_code(str(value))}" for name, value in sample.items())
            self._add(text_pb("samples", "\n\n".join(parts)), number)
        digests = "\n".join(f"{digest}  {file}" for file, digest in results.digests.items())
        self._add(text_pb("sha256", _code(digests)), results.step)
        self._writer.flush()

    def finish(self) -> None:
        """See `Tracker`; an event file has no end."""

    def _add(self, summary: Summary, step: int, when: float | None = None) -> None:
        wall_time = time.time() if when is None else when
        self._writer.add_event(Event(wall_time=wall_time, step=step, summary=summary))


def _scalars(figures: dict[str, float]) -> Summary:
    values = (Summary.Value(tag=name, simple_value=value) for name, value in figures.items())
    return Summary(value=values)


def _code(text: str) -> str:
    """Text as Markdown that is shown as it is."""
    return "".join(f"    {line}\n" for line in text.splitlines())
