"""A base model for rewards, of a run on text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from classified import DECODERS
from rewarded import prepare_pairs, text_pairs
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from moray.provenance.lineage import verify
from moray.provenance.manifest import write_manifest
from moray.stages.base_model import base_model


def test_a_model_of_a_run_has_its_body_and_a_new_output_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_pairs(tmp_path, text_pairs(60), DECODERS["Llama"]())
    monkeypatch.chdir(folder)
    exported = Path("results/runs/talker/model")
    exported.parent.mkdir(parents=True)
    (folder / "given").rename(exported)
    torch.manual_seed(2)
    talker: Any = AutoModelForCausalLM.from_config(DECODERS["Llama"]())
    talker.save_pretrained(exported)
    write_manifest(exported, run="talker")
    cfg = {"source": "run", "run": "talker", "classes_of": "dataset", "seed": 0}
    base_model(Path("heir"), cfg, folder / "dataset", modality="labelled text")
    heir: Any = AutoModelForSequenceClassification.from_pretrained(folder / "heir")
    assert (heir.config.num_labels, heir.config.problem_type) == (1, "regression")
    for name, weight in talker.model.state_dict().items():
        assert torch.equal(heir.model.state_dict()[name], weight)
    # Where it is from is checked back to the run.
    assert verify([Path("heir")]).broken == []
    write_manifest(exported, run="another")
    (line,) = verify([Path("heir")]).broken
    assert line.startswith("results/runs/talker/model/manifest.json: changed since heir/proof.json")
