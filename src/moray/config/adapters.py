"""Checks of a run's adapter: other keys, the run that it starts from."""

from collections.abc import Iterator

from moray.config.layout import new_tokens_error
from moray.config.lineage import existing_base, existing_starts
from moray.config.plan import exports_adapter
from moray.config.schema.experiment import Experiment, Run
from moray.config.schema.models import HubModel, PathModel
from moray.config.schema.strategies import STRATEGIES
from moray.config.schema.train import Adapter
from moray.errors import UserError

# Keys that say which matrices an adapter has, and what they stand for.
_OF_MATRICES = (
    "rank",
    "alpha",
    "use_rslora",
    "use_dora",
    "target_modules",
    "target_parameters",
    "modules_to_save",
    "layers_to_transform",
    "rank_pattern",
    "alpha_pattern",
    "trainable_token_indices",
)


def faults_of_adapter(
    experiment: Experiment, name: str, run: Run, adapter: Adapter
) -> Iterator[UserError]:
    """Faults of keys of an adapter that conflict with others."""
    path, train = f"runs.{name}.adapter", run.train
    if adapter.base_dtype == "bf16" and train.precision == "fp32":
        yield UserError(
            f"{path}.base_dtype",
            "bf16 weights can't be combined with train.precision: fp32",
            "change one of them",
        )
    if not adapter.create_new_adapter:
        yield from _continuation(experiment, name, run, adapter)
    for start in _below(experiment, name) if adapter.quantize_base else []:
        if exports_adapter(experiment, start):
            yield UserError(
                f"{path}.quantize_base",
                f"{adapter.quantize_base} can't be used here, because run {start} exports only its "
                "adapter, which can't be merged into quantized weights",
                f"set export.merge_adapter: true in run {start}",
            )
    is_on_adapter = isinstance(run.model, str) and _adapter_of(experiment, run.model)
    if adapter.quantize_base and adapter.create_new_adapter and is_on_adapter:
        yield UserError(
            f"{path}.quantize_base",
            f"{adapter.quantize_base} can't be used here, because models.{run.model}.adapter can't "
            "be merged into quantized weights",
            "set create_new_adapter: false to train that adapter, or merge it into its base",
        )
    strategies = {name for name, strategy in STRATEGIES.items() if strategy.quantizes}
    if adapter.use_dora:
        # PEFT computes its start from the base's weights, which only FSDP2's first worker loads.
        strategies -= {"fsdp2"}
    if adapter.quantize_base and train.strategy not in strategies:
        kind = f"{adapter.quantize_base}{' with use_dora' if adapter.use_dora else ''}"
        yield UserError(
            f"{path}.quantize_base",
            f"{kind} can't be combined with train.strategy: {train.strategy}",
            f"set strategy to {' or '.join(sorted(strategies))}",
        )
    base = existing_base(experiment, name)
    new = base and getattr(experiment.models[base], "new_tokens", [])
    if new and train.strategy != "ddp" and not adapter.trains_embeddings:
        yield new_tokens_error(path, train.strategy, f"models.{base}.new_tokens")
    if adapter.trainable_token_indices and train.strategy != "ddp":
        yield new_tokens_error(path, train.strategy, "trainable_token_indices")


def _adapter_of(experiment: Experiment, model: str) -> str | None:
    """The folder of the adapter that a base model has."""
    section = experiment.models.get(model)
    return section.adapter if isinstance(section, PathModel | HubModel) else None


def _below(experiment: Experiment, name: str) -> list[str]:
    """The runs whose models a run's adapter is on top of."""
    adapter, starts = experiment.runs[name].adapter, existing_starts(experiment, name)
    if adapter is None or adapter.create_new_adapter:
        return starts
    return [run for start in starts for run in _below(experiment, start)]


def _continuation(
    experiment: Experiment, name: str, run: Run, adapter: Adapter
) -> Iterator[UserError]:
    """Faults of a run that trains the adapter of its start further."""
    path = f"runs.{name}.adapter"
    key = f"{path}.create_new_adapter"
    if isinstance(run.model, str) and not _adapter_of(experiment, run.model):
        yield UserError(
            key,
            f"got false, and the run starts from models.{run.model}, which has no adapter",
            f"set models.{run.model}.adapter, or model to {{run: NAME}}",
        )
    if adapter.init_lora_weights is not None:
        yield UserError(
            f"{path}.init_lora_weights",
            f"got {adapter.init_lora_weights}, and create_new_adapter: false continues another "
            "adapter",
            "remove one of them",
        )
    for start in existing_starts(experiment, name):
        yield from _predecessor(experiment, path, start, adapter)


def _predecessor(
    experiment: Experiment, path: str, start: str, adapter: Adapter
) -> Iterator[UserError]:
    """Faults of training the adapter of a run further."""
    key, before = f"{path}.create_new_adapter", experiment.runs[start].adapter
    if before is None or not exports_adapter(experiment, start):
        problem, remedy = "has no adapter", "set model to a run that has one, or remove it"
        if before is not None:
            problem = "exports a merged model"
            remedy = f"set export.merge_adapter: false in run {start}"
        yield UserError(key, f"got false, and run {start} {problem}", remedy)
        return
    if before.changes_base:
        yield UserError(
            key,
            f"got false, and the adapter of run {start} began from the base's weights "
            f"(init_lora_weights: {before.init_lora_weights}), so that it is exported in another "
            "form",
            f"set export.merge_adapter: true in run {start}, and remove it",
        )
        return
    for field in _OF_MATRICES:
        own, other = getattr(adapter, field), getattr(before, field)
        if own != other:
            yield UserError(
                f"{path}.{field}",
                f"got {own}, and the adapter of run {start} has {other}",
                f"set it to {other}" if other is not None else "remove it",
            )
