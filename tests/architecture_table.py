"""Measure what each architecture of `architectures.py` does; write docs/architectures.md's table.

    python tests/architecture_table.py [ARCHITECTURE...]

Trains a tiny random model of each: with adapters, with adapters on 4 bits, and on two workers
under FSDP2. Without names, all of them, and the table is written; takes half an hour on two cores.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from architectures import HYBRID, PACKED, UNPACKED, build
from fleet import losses, train_all, train_or_say_why
from jobs import job_maker
from packed import pieces_of
from safetensors import safe_open
from small_model import write_small
from transformers import AutoModelForCausalLM

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.schema.train import Adapter
from moray.model.load import load_model
from moray.stages.base_model import base_model
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.rows import StoredSplit
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokenizer import load_tokenizer
from moray.train.checkpoint.load import trained_model
from moray.train.spec import Part, RunSpec
from moray.workers.entry import Worker

PAGE = Path(__file__).parents[1] / "docs/architectures.md"
CONFIGS = PACKED | UNPACKED | HYBRID
STEPS = 3


class Measured:
    """One architecture: the folder of its model and tokens, and the jobs that train it."""

    def __init__(self, name: str, folder: Path, small: Path) -> None:
        self.name, self.folder, self.small = name, folder, small
        folder.mkdir()
        build(CONFIGS[name]()).save_pretrained(folder / "given")
        load_tokenizer(small / "model").save_pretrained(folder / "given")
        base_model(folder / "model", {"source": "path", "path": str(folder / "given")})
        cfg = {"format": "prompt-completion", **result_keys(Data(block_size=64))}
        tokenize(small / "dataset", folder / "model", folder / "tokens", cfg)

    def job(self, work: str, adapter: Adapter | None = None, **settings: object) -> RunSpec:
        """A job of a few steps on its model."""
        make = job_maker(self.small, self.folder)
        run = {"max_steps": STEPS, "learning_rate": 1e-3, "save_steps": STEPS, "eval_steps": STEPS}
        job = make(work, adapter=adapter, **(run | settings))
        parts = (Part("data", self.folder / "tokens"),)
        return replace(job, start=self.folder / "model", parts=parts)

    @torch.no_grad()
    def difference(self) -> float:
        """Largest difference of logits between documents in the fullest rows and each alone.

        Relative to the largest logit.
        """
        split = StoredSplit(self.folder / "tokens", "train")
        ours = load_model(self.folder / "model")
        plain = AutoModelForCausalLM.from_pretrained(self.folder / "given", dtype=torch.float32)
        largest, differences = 0.0, []
        fullest = sorted((pieces_of(split, row) for row in range(len(split))), key=len)[-20:]
        for pieces in fullest:
            tokens = torch.from_numpy(np.concatenate([p.tokens for p in pieces]).astype(np.int64))
            positions = torch.cat([torch.arange(len(p.tokens)) for p in pieces])
            logits = ours(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False
            ).logits[0]
            alone = [
                plain(input_ids=torch.from_numpy(p.tokens.astype(np.int64))[None]).logits[0]
                for p in pieces
            ]
            differences.append(float((logits - torch.cat(alone)).abs().max()))
            largest = max(largest, float(torch.cat(alone).abs().max()))
        return max(differences) / largest

    def exported(self, job: RunSpec) -> str:
        """Whether the trained model has the names of the given one, and loads as it was trained."""
        checkpoint = path_of(folder_of(job.work), STEPS)
        model = trained_model(self.folder / "model", checkpoint, job.adapter)
        model.save_pretrained(self.folder / "exported")
        given, exported = (names_in(self.folder / name) for name in ("given", "exported"))
        if given != exported:
            return f"no: {len(given - exported)} names less, {len(exported - given)} more"
        again = load_model(self.folder / "exported")
        tokens = torch.arange(30)[None]
        same = torch.equal(again(input_ids=tokens).logits, model(input_ids=tokens).logits)
        return "yes" if same else "no: other logits"


def names_in(folder: Path) -> set[str]:
    """The names of the tensors in a folder."""
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names |= set(tensors.keys())
    return names


def outcome(job: RunSpec, expected: list[float]) -> str:
    """Whether a job was trained, and began with the losses that are expected."""
    if (job.work / "why").exists():
        return f"no: {(job.work / 'why').read_text()}"
    pairs = zip(losses(job), expected, strict=False)
    off = max((abs(found - right) / right for found, right in pairs), default=0.0)
    return "yes" if off < 1e-5 else f"no: losses differ by {off:.1e}"


def measure(names: list[str], folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The columns of each architecture's row."""
    small = folder / "small"
    small.mkdir()
    write_small(small)
    alone = Worker(0, 1, torch.device("cpu"))
    models, sharded = [], []
    for number, name in enumerate(names):
        model = Measured(name, folder / str(number), small)
        adapter = Adapter(rank=4, alpha=8)
        here = [
            model.job("full"),
            model.job("lora", adapter),
            model.job("qlora", adapter.model_copy(update={"quantize_base": "4bit"})),
        ]
        train_or_say_why(here, alone)
        both = [
            model.job(f"{which} fsdp2", job.adapter, strategy="fsdp2", micro_batch_size=4)
            for which, job in zip(("full", "lora"), here, strict=False)
            # Workers of which one fails at another step would wait for each other.
            if not (job.work / "why").exists()
        ]
        models.append((model, here, both))
        sharded += both
        print(name, file=sys.stderr, flush=True)
    train_all(sharded, 2, "torchrun", folder / "workers", train_or_say_why)
    for model, (full, lora, qlora), (full_sharded, *lora_sharded) in models:
        # Adapters begin as zero.
        first = losses(full)[:1]
        yield (
            model.name,
            {
                "difference": f"{model.difference():.1e}",
                "export": model.exported(full),
                "LoRA": outcome(lora, first),
                "QLoRA": outcome(qlora, []),
                "FSDP2": outcome(full_sharded, losses(full)),
                "LoRA, FSDP2": "".join(outcome(job, losses(lora)) for job in lora_sharded),
            },
        )


def main(names: list[str]) -> None:
    """Print what was measured; of all architectures, write the table of the documentation."""
    lines, failed = [], False
    with tempfile.TemporaryDirectory() as scratch:
        for name, found in measure(names or [*CONFIGS], Path(scratch)):
            print(name, found, sep="\t", flush=True)
            kind = CONFIGS[name]().model_type
            rows = "packed" if name in PACKED else "one document each"
            difference = found["difference"] if name in PACKED else ""
            quantized = found.pop("QLoRA").partition(":")[0]
            lines.append(f"| {name} | `{kind}` | {rows} | {difference} | {quantized} |\n")
            failed |= any(value.startswith("no") for value in found.values())
    if failed:
        sys.exit("the page says that all of them work")
    if not names:
        page = PAGE.read_text().splitlines(keepends=True)
        first = next(at for at, line in enumerate(page) if line.startswith("|")) + 2
        rest = [line for line in page[first:] if not line.startswith("|")]
        PAGE.write_text("".join([*page[:first], *lines, *rest]))


if __name__ == "__main__":
    main(sys.argv[1:])
