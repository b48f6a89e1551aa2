"""Search for the settings of a run with the lowest validation loss."""

import json
from pathlib import Path
from typing import Any

import yaml

from moray.console import say
from moray.errors import UserError
from moray.provenance.manifest import write_bytes
from moray.sweeps.study import Study, Verdict
from moray.sweeps.trials import carry_out
from moray.train.identity import identity_of
from moray.train.job import RunSpec


def search(
    run: str,
    start: Path,
    stores: list[Path],
    best: Path,
    trials: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Train one trial after another; write them all, and the settings of the best as an overlay.

    Args:
        cfg: the `cfg` of the run's training without the keys of the space, and the `search`
            section with the values of the space in one form.

    Raises:
        UserError: if a trial failed or stopped on request, or if all of them diverged.
    """
    section = cfg["search"]
    study = Study(section["space"], section["seed"])
    lines: list[dict[str, Any]] = []
    for _ in range(section["trials"]):
        trial = study.next()
        name = f"search {run}, trial {trial.number} of {section['trials']}"
        say(f"{name}: {_words(trial.values)}")
        changed = _with_values(cfg, trial.values)
        training = RunSpec.of_params(
            run, start, stores, changed, {**execution, "tracking": []}, code
        )
        verdict, seconds = carry_out(trial, training, best.parent)
        study.tell(trial, verdict)
        say(f"{name}: {_outcome(verdict)}")
        lines.append(
            {
                "number": trial.number,
                "values": trial.values,
                "validation_loss": verdict.validation_loss,
                "step": verdict.step,
                "state": verdict.state,
                "seconds": round(seconds, 1),
                "fingerprint": identity_of(training).fingerprint,
            }
        )
    chosen = _best(run, lines)
    write_bytes(trials, "".join(json.dumps(line) + "\n" for line in lines).encode())
    write_bytes(best, _overlay(run, chosen).encode())
    say(
        f"search {run}: best is trial {chosen['number']}, validation loss "
        f"{chosen['validation_loss']:.4f}: {_words(chosen['values'])}; "
        f"next: snakemake finetune --configfile {best}"
    )


def _with_values(cfg: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    changed = {key: value for key, value in cfg.items() if key != "search"}
    for key, value in values.items():
        section, name = key.removeprefix("data.").split(".")
        # Without an adapter, there is no section for its first key.
        changed[section] = {**(changed[section] or {}), name: value}
    return changed


def _best(run: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    finished = [line for line in lines if line["state"] == "finished"]
    if not finished:
        raise UserError(
            f"runs.{run}.search.space",
            "no trial trained to its end with finite losses",
            "lower the learning rates in it",
        )
    # The first of equal ones.
    return min(finished, key=lambda line: line["validation_loss"])


def _overlay(run: str, chosen: dict[str, Any]) -> str:
    settings: dict[str, Any] = {}
    for key, value in chosen["values"].items():
        *parents, last = key.split(".")
        section = settings
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    head = (
        f"# The best of a search: trial {chosen['number']}, validation loss "
        f"{chosen['validation_loss']:.6f} at step {chosen['step']}.\n"
    )
    return head + yaml.safe_dump({"runs": {run: settings}})


def _outcome(verdict: Verdict) -> str:
    loss = (
        ""
        if verdict.validation_loss is None
        else f", validation loss {verdict.validation_loss:.4f}"
    )
    return f"{verdict.state} at step {verdict.step}{loss}"


def _words(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {json.dumps(value)}"
        for key, value in values.items()
    )
