"""Progress of a training run: a bar on a terminal, plain lines elsewhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from moray.background import repeated
from moray.console import say, terminal
from moray.lines import Follower
from moray.train.history import HISTORY

_POLL_SECONDS = 0.5
# Plain lines end up in logs of batch systems: about twenty per run are enough.
_PLAIN_LINES = 20
# Short enough for 80 columns; the learning rate is in the history.
_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}"
_ON_BAR = {"loss": "loss", "held-out loss": "held-out", "left": "left", "mfu": "mfu"}


@contextmanager
def shown(work: Path, run: str) -> Iterator[None]:
    """Follow a run's history while the body trains it."""
    display = _Bar(run) if terminal().isatty() else _Lines(run)
    follower = Follower(work / HISTORY)
    # Shown by an earlier start.
    follower.look()

    def show() -> None:
        # A resumed run drops the lines after its checkpoint; earlier ones were already shown.
        lines, _ = follower.look()
        for line in lines:
            display.show(json.loads(line))

    try:
        with repeated(show, _POLL_SECONDS):
            yield
    finally:
        show()
        display.close()


class _Bar:
    def __init__(self, run: str) -> None:
        self._run = run
        self._bar: tqdm[NoReturn] | None = None
        self._facts: dict[str, str] = {}

    def show(self, line: dict[str, Any]) -> None:
        if "note" in line:
            tqdm.write(f"{self._run}  {line['note']}", file=terminal())
            return
        if self._bar is None:
            self._bar = tqdm(
                desc=self._run,
                bar_format=_BAR,
                initial=line["step"],
                total=line["num_steps"],
                file=terminal(),
                dynamic_ncols=True,
            )
        self._facts |= _facts(line)
        first = {_ON_BAR[name]: self._facts[name] for name in _ON_BAR if name in self._facts}
        rest = {name: value for name, value in self._facts.items() if name.endswith("/s")}
        shown = (f"{name} {value}" for name, value in (first | rest).items())
        self._bar.set_postfix_str(", ".join(shown), refresh=False)
        self._bar.update(line["step"] - self._bar.n)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar:
            self._bar.close()


class _Lines:
    def __init__(self, run: str) -> None:
        self._run = run
        self._next = 0.0

    def show(self, line: dict[str, Any]) -> None:
        if "note" in line:
            say(f"{self._run}  {line['note']}")
            return
        share = line["step"] / line["num_steps"]
        if share < self._next and "eval_loss" not in line:
            return
        if "eval_loss" not in line:
            self._next = share + 1 / _PLAIN_LINES
        facts = "  ".join(f"{name} {value}" for name, value in _facts(line).items())
        say(f"{self._run}  step {line['step']}/{line['num_steps']}  {facts}")

    def close(self) -> None:
        """Nothing to do: each line is complete."""


def _facts(line: dict[str, Any]) -> dict[str, str]:
    if "eval_loss" in line:
        return {"held-out loss": f"{line['eval_loss']:.4f}"}
    left = (line["num_steps"] - line["step"]) * line["step_seconds"]
    mfu = {"mfu": f"{line['mfu']:.0%}"} if "mfu" in line else {}
    return {
        "loss": f"{line['loss']:.4f}",
        "lr": f"{line['learning_rate']:.2e}",
        **_speed(line),
        **mfu,
        "left": f"{int(left) // 60}:{int(left) % 60:02d}",
    }


def _speed(line: dict[str, Any]) -> dict[str, str]:
    suffix = "_per_second"
    name = next(key for key in line if key.endswith(suffix))
    return {f"{name.removesuffix(suffix)}/s": f"{line[name]:,.0f}"}
