"""From a run's last checkpoint to a Hugging Face folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from conversations import CHATML, TALKS
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from moray.config.schema import Adapter, Data, Train, result_keys
from moray.corpus.dataset import SPLITS, write_dataset
from moray.provenance.manifest import damaged_files, read_manifest, write_manifest
from moray.stages.export import export
from moray.stages.tokenize import tokenize
from moray.train.checkpoints import checkpoint
from moray.train.job import Job
from moray.train.loop import train
from moray.workers.worker import Worker

CFG = {"run": "tuned", "start": "models/chat", "dataset": "talks", "chat_template": CHATML}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, chat_folder: Path) -> Path:
    """A folder with `start`, and `run` with what a run of two steps on it records."""
    folder = tmp_path_factory.mktemp("trained")
    start = Path(shutil.copytree(chat_folder, folder / "start"))
    settings = json.loads((start / "generation_config.json").read_text())
    (start / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [0, 321]}))
    write_manifest(start, architecture="llama", isolates_documents=True)
    pairs = ((split, talk) for split in SPLITS for talk in TALKS)
    write_dataset(folder / "talks", pairs, "messages", {"source": "test"})
    data = Data(chat_template=CHATML, block_size=64)
    cfg = {"format": "messages", **result_keys(data)}
    tokenize(folder / "talks", start, folder / "tokens", cfg)
    train_run(folder, "run", None)
    return folder


def train_run(folder: Path, name: str, adapter: Adapter | None) -> None:
    """Train two steps, and record what the driver would."""
    (folder / name).mkdir()
    settings = Train(max_steps=2, global_batch_size=2, learning_rate=1e-2, precision="fp32")
    job = Job(
        folder / "start",
        folder / "tokens",
        folder / name,
        settings,
        adapter=adapter,
        threads=1,
        cache=folder / "compiled",
    )
    facts = train(job, Worker(0, 1, torch.device("cpu")))
    last = checkpoint.path_of(checkpoint.folder_of(job.work), facts["exported_step"])
    record = {
        "checkpoint": str(last),
        "fingerprint": "0123",
        "adapter": adapter and result_keys(adapter),
        "train": {},
        "software": {},
        **facts,
    }
    (folder / name / "train.json").write_text(json.dumps(record))


def run(trained: Path, output: Path, name: str = "run", **changes: Any) -> Path:
    files = trained / name / "train.json", trained / name / "history.jsonl"
    export(trained / "start", *files, output, CFG | changes)
    return output


def test_the_folder_has_the_trained_weights_and_says_where_it_is_from(
    trained: Path, tmp_path: Path
) -> None:
    folder = run(trained, tmp_path / "model")
    assert damaged_files(folder) == []
    record = json.loads((trained / "run/train.json").read_text())
    weights = tensors_of(Path(record["checkpoint"]))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(trained / "start", dtype=torch.float32)
    assert any(
        not torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True)
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [0, 321]
    manifest = read_manifest(folder)
    assert (manifest["run"], manifest["fingerprint"]) == ("tuned", "0123")
    card = (folder / "README.md").read_text()
    assert "`models/chat`, fine-tuned on the dataset `talks` for 2 steps" in card


@pytest.mark.parametrize("settings", [{}, {"use_dora": True, "use_rslora": True}])
def test_adapters_are_merged_into_the_model_and_lie_beside_it(
    trained: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    shutil.copytree(trained, tmp_path / "trained", ignore=shutil.ignore_patterns("run"))
    train_run(tmp_path / "trained", "adapted", Adapter(rank=4, **settings))
    folder = run(tmp_path / "trained", tmp_path / "model", "adapted")
    assert damaged_files(folder) == []
    whole, base = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (folder, trained / "start")
    )
    assert whole.state_dict().keys() == base.state_dict().keys()
    tokens = torch.arange(32).unsqueeze(0)
    with torch.no_grad():
        merged, before = whole(tokens).logits, base(tokens).logits
        beside = PeftModel.from_pretrained(base, str(folder / "adapter"))(tokens).logits
    assert (merged - before).abs().max() > 1e-2
    torch.testing.assert_close(beside, merged, rtol=1e-5, atol=1e-5)


def test_the_tokenizer_has_the_template_that_the_run_spoke_by(
    trained: Path, tmp_path: Path, chat_folder: Path
) -> None:
    assert AutoTokenizer.from_pretrained(chat_folder).chat_template is None
    tokenizer = AutoTokenizer.from_pretrained(run(trained, tmp_path / "model"))
    messages = [{"role": "user", "content": "é"}]
    said = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert said == "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"


def test_without_one_the_tokenizer_stays_as_it_was(trained: Path, tmp_path: Path) -> None:
    start = Path(shutil.copytree(trained / "start", tmp_path / "trained/start"))
    shutil.copytree(trained / "run", tmp_path / "trained/run")
    (start / "chat_template.jinja").write_text("its own")
    folder = run(tmp_path / "trained", tmp_path / "model", chat_template=None)
    tokenizer, before = (AutoTokenizer.from_pretrained(path) for path in (folder, start))
    assert tokenizer.chat_template == "its own"
    assert tokenizer.get_vocab() == before.get_vocab()
    assert tokenizer.eos_token == before.eos_token == "<|im_end|>"
