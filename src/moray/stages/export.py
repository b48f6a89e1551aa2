"""Export a run's checkpoint as a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import torch

from moray.config.schema import Adapter
from moray.console import say
from moray.model.adapter import merged, save_adapter
from moray.model.folder import base_reference, stored_dtype, whole_model_and_adapters
from moray.model.load import load_model
from moray.provenance.manifest import whole_or_nothing
from moray.stages.exported import write_card, write_export_manifest, write_lineage
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train.checkpoints.trained_model import trained_model

_ALONE = """ This folder contains
only the adapter, which is loaded on top of `{start}`."""

_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Adapters are trained in fp32, and small.
_ADAPTER_DTYPE = {"auto": torch.float32, **_DTYPE}


def export(
    start: Path, train: Path, history: Path, sources: list[Path], output: Path, cfg: dict[str, Any]
) -> None:
    """Write model, tokenizer, generation config, model card, and the manifest last.

    An adapter is merged into the model, and also written to `adapter/`. Without `merge_adapter`,
    only the adapter is written, and the manifest names its base.

    Args:
        start: model folder that the run started from.
        train: the run's `train.json`.
        history: the run's `history.jsonl`.
        sources: manifests of the start and of the run's rows, and descriptions of its datasets.
        output: folder to write to.
        cfg: names of the run, its start and its datasets; the `export` section; the run's chat
            template.
    """
    record = json.loads(train.read_text())
    adapter = Adapter(**record["adapter"]) if record["adapter"] else None
    model = trained_model(start, Path(record["checkpoint"]), adapter)
    dtype = _dtype(cfg["dtype"], start)
    with whole_or_nothing(output):
        facts: dict[str, Any] = {}
        if adapter is None or cfg["merge_adapter"]:
            if adapter is not None:
                save_adapter(model, adapter, output / "adapter", torch.float32)
                model = merged(load_model(start), output / "adapter")
            parameters = model.num_parameters()
            model.to(dtype).save_pretrained(output)
        else:
            save_adapter(model, adapter, output, _ADAPTER_DTYPE[cfg["dtype"]])
            model.generation_config.save_pretrained(output)
            parameters = model.num_parameters(only_trainable=True)
            facts["base"] = base_reference(output, start)
        tokenizer = load_tokenizer(start)
        if cfg["chat_template"] is not None:
            tokenizer.chat_template = cfg["chat_template"]
        tokenizer.save_pretrained(output)
        alone = "base" in facts
        write_card(
            output,
            cfg,
            record,
            history,
            unit=_unit(record),
            pipeline="text-generation",
            library="peft" if alone else "transformers",
            more=_ALONE.format(start=cfg["start"]) if alone else "",
        )
        write_export_manifest(output, cfg, record, start, parameters=parameters, **facts)
        write_lineage(output, train, history, sources)
    say(f"model of {cfg['run']}: {output}")


def _dtype(key: str, start: Path) -> torch.dtype:
    if key == "auto":
        return stored_dtype(whole_model_and_adapters(start)[0])
    return _DTYPE[key]


def _unit(record: dict[str, Any]) -> str:
    return "per pair" if "preference" in record else "nats per token"
