"""Make a base model: from scratch, from a local folder, from the hub, or of a run."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from moray.config.schema.base import Proofs
from moray.config.tasks import MODALITIES, Modality, module_of
from moray.console import say
from moray.errors import UserError
from moray.hub import explain_refusals
from moray.model.obtain import download_snapshot
from moray.proofs.comparison import Comparison, collect, conclude, write_proof
from moray.provenance.manifest import MANIFEST, atomic_folder, write_manifest


@dataclass(frozen=True)
class Base:
    """A base model that was written to a folder, for its manifest.

    Attributes:
        model: as it was written, in evaluation mode.
        compare: compares it with what plain transformers reads back; it gets the seconds that
            making it took. The first step of a run compares the loss in any case.
        facts: more entries of the manifest.
        more: what is printed after its size.
    """

    model: PreTrainedModel
    compare: Callable[[float], Iterable[Comparison]] = lambda seconds: ()
    facts: dict[str, Any] = field(default_factory=dict)
    more: str = ""


def base_model(
    output: Path,
    cfg: dict[str, Any],
    dataset: Path | None = None,
    proofs: Proofs = "refuse",
    modality: Modality = "text",
) -> None:
    """Write a Hugging Face folder, its manifest, and its comparisons with transformers.

    A tokenizer from scratch is trained on the dataset; a classifier tells apart its classes.
    `state` in `cfg` only makes it run again; what counts of the user's files is copied.

    Args:
        proofs: what follows if transformers reads back something else.

    Raises:
        UserError: if it does, and `proofs` is `refuse`.
    """
    began = time.monotonic()
    cfg = {key: cfg[key] for key in cfg if key != "state"}
    owner = MODALITIES[modality].task
    with (
        explain_refusals(f"models.{output.name}", str(cfg.get("repo_id"))),
        atomic_folder(output),
    ):
        source = None
        if cfg["source"] == "hub":
            has_weights = not cfg.get("random_weights")
            source = download_snapshot(cfg["repo_id"], cfg["revision"], has_weights)
        elif cfg["source"] == "path":
            source = Path(cfg["path"])
        elif cfg["source"] == "run":
            source = Path("results/runs", cfg["run"], "model")
        with _original_named(output, source):
            base: Base = module_of(owner, "base_model").make(output, cfg, source, dataset)
        model = base.model
        _check_finite(model, f"models.{output.name}")
        proof = []
        if proofs != "off":
            seconds = time.monotonic() - began
            comparisons = collect("base model", lambda: base.compare(seconds))
            proof = conclude(comparisons, proofs, f"models.{output.name}")
        parameters: int = model.num_parameters()
        architecture = model.config.model_type
        write_manifest(
            output, model=cfg, parameters=parameters, architecture=architecture, **base.facts
        )
        if proof:
            # What a run has made can change; other sources are pinned or the user's.
            of_run = [source / MANIFEST] if source and cfg["source"] == "run" else []
            write_proof(output, proof, [output / MANIFEST, *of_run])
    say(f"model {output.name}: {parameters / 1e6:.1f} M parameters{base.more}")


@contextmanager
def _original_named(output: Path, source: Path | None) -> Iterator[None]:
    """Name the key in errors of the body, and the source instead of its copy, which is removed."""
    try:
        yield
    except UserError as error:
        key, original = f"models.{output.name}", str(source or output)
        path, problem, remedy = (
            part.replace(str(output), original)
            for part in (error.path, error.problem, error.remedy)
        )
        # Checks of what is in its folder don't know the model's name.
        if path == "model":
            path = key
        elif path != error.path:
            path, problem = key, f"{path}: {problem}"
        raise UserError(path, problem, remedy) from error


@torch.no_grad()
def _check_finite(model: PreTrainedModel, path: str) -> None:
    for name, weight in model.named_parameters():
        # An empty tensor has no largest weight.
        if weight.numel() and not torch.linalg.vector_norm(weight, torch.inf).isfinite():
            raise UserError(
                path,
                f"{name} has values that aren't finite numbers (NaN or infinity)",
                "copy or download the model again, or choose another",
            )
