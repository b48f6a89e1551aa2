"""How much main memory exports take, by the size of the weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import LlamaConfig, LlamaForCausalLM

from moray.config.schema.base import result_keys
from moray.config.schema.train import Adapter
from moray.model.adapter import add_adapter
from moray.provenance.manifest import write_manifest
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train.optimizer import trained_parameters

# Exports one model after the other, and says the peak after each. That of `resource` begins with
# the peak of the process that this one is from.
_PROGRAM = """
import json, re, sys
from pathlib import Path
from moray.tasks.language.export import write

for start, record, output, cfg in json.loads(sys.argv[1]):
    Path(output).mkdir()
    write(Path(start), record, Path(output), cfg)
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print("peak", int(peak[1]) * 1024)
"""


def export_of(folder: Path, adapter: Adapter | None, tokenizer: Any, **sizes: int) -> list[Any]:
    """What to call an export with, of a run on a model of these sizes, stored in bf16."""
    start, checkpoint = folder / "start", folder / "checkpoint"
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=8, **sizes)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).bfloat16()
    model.to_empty(device="cpu")
    for value in model.state_dict().values():
        value.fill_(0.01)
    tokenizer.save_pretrained(start)
    model.save_pretrained(start, max_shard_size="30MB")
    write_manifest(start, architecture="llama", isolates_documents=True)
    if adapter:
        add_adapter(model, adapter, seed=0)
    state = {name: value.detach().float() for name, value in trained_parameters(model).items()}
    save(state, checkpoint_id=checkpoint, no_dist=True)
    write_manifest(checkpoint)
    record = {"checkpoint": str(checkpoint), "adapter": adapter and result_keys(adapter)}
    record["train"] = {}
    cfg = {"dtype": "auto", "merge_adapter": True, "chat_template": None, "start": "start"}
    cfg["run"] = "tuned"
    return [str(start), record, str(folder / "out"), cfg]


# Its process imports for most of the time.
@pytest.mark.long
def test_a_model_is_held_once_in_the_type_it_is_exported_in(
    chat_folder: Path, tmp_path: Path
) -> None:
    """In fp32 it would take twice as much, and what is written as much again."""
    tokenizer, adapter = load_tokenizer(chat_folder), Adapter(rank=4)
    # Each layer is small beside the whole.
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}
    small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    exports = [
        # Imports what exports import.
        export_of(tmp_path / "small", adapter, tokenizer, **small),
        export_of(tmp_path / "merged", adapter, tokenizer, **sizes),
        export_of(tmp_path / "whole", None, tokenizer, **sizes),
    ]
    command = [sys.executable, "-c", _PROGRAM, json.dumps(exports)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, *peaks = [int(line[5:]) for line in said.splitlines() if line.startswith("peak ")]
    for (_, _, output, _), peak in zip(exports[1:], peaks, strict=True):
        (file,) = Path(output).glob("model*.safetensors")
        assert file.stat().st_size > 1e8
        assert peak - before < 1.6 * file.stat().st_size
