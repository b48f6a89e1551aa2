"""From a run's last checkpoint to a Hugging Face folder."""

import gc
import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import tensors_of
from conversations import CHATML, TALKS
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.schema.train import Adapter, Train
from moray.corpus.dataset import SPLITS, write_dataset
from moray.errors import UserError
from moray.model.load import empty_model, load_model
from moray.model.quantization import Quantization
from moray.provenance.manifest import MANIFEST, damaged_files, read_manifest, write_manifest
from moray.stages import export_text
from moray.stages.export import export
from moray.stages.tokenize import tokenize
from moray.storage.interface import folder_of, path_of
from moray.tasks.language.loss import TokenLoss, has_plain_head, make_batch
from moray.tasks.language.rows import StoredSplit
from moray.tasks.language.tokenizer import stop_token_ids
from moray.train.job import Job, Part
from moray.train.loop import train
from moray.train.restore import trained_model
from moray.workers.entry import Worker

CFG: dict[str, Any] = {
    "run": "tuned",
    "start": "models/chat",
    "datasets": {"talks": 1.0},
    "chat_template": CHATML,
}
CFG |= {"dtype": "auto", "merge_adapter": True}


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


def train_run(
    folder: Path, name: str, adapter: Adapter | None, start: str = "start", **keys: Any
) -> None:
    """Train two steps, and record what the driver would."""
    (folder / name).mkdir()
    keys = {"precision": "fp32", **keys}
    settings = Train(max_steps=2, global_batch_size=2, learning_rate=1e-2, **keys)
    job = Job(
        folder / start,
        (Part("data", folder / "tokens"),),
        folder / name,
        settings,
        adapter=adapter,
        threads=1,
        cache=folder / "compiled",
    )
    facts = train(job, Worker(0, 1, torch.device("cpu")))
    last = path_of(folder_of(job.work), facts["exported_step"])
    record = {
        "checkpoint": str(last),
        "fingerprint": "0123",
        "continued_from": None,
        "adapter": adapter and result_keys(adapter),
        "train": {},
        "software": {},
        **facts,
    }
    (folder / name / "train.json").write_text(json.dumps(record))


def run(
    trained: Path, output: Path, name: str = "run", start: str = "start", **changes: Any
) -> Path:
    files = trained / name / "train.json", trained / name / "history.jsonl"
    export(trained / start, *files, [trained / start / MANIFEST], output, CFG | changes, "text")
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


@pytest.fixture(scope="module")
def in_bf16(trained: Path) -> dict[str, Tensor]:
    """The weights of `bf16`, a run in `trained`, as its checkpoint has them."""
    train_run(trained, "bf16", None, weights="bf16", precision="bf16")
    return tensors_of(Path(json.loads((trained / "bf16/train.json").read_text())["checkpoint"]))


@pytest.mark.parametrize("dtype", ["auto", "bf16"])
def test_weights_in_bf16_are_not_rounded_again(
    dtype: str, trained: Path, in_bf16: dict[str, Tensor], tmp_path: Path
) -> None:
    """`auto` is fp32 here, as the base is."""
    folder = run(trained, tmp_path / "model", "bf16", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)
    for name, value in model.state_dict().items():
        assert torch.equal(value.float(), in_bf16[name])


def test_what_the_run_does_not_change_goes_along(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "trained")
    start = tmp_path / "trained/start"
    (start / "processor_config.json").write_text("{}")
    (start / "model.safetensors.index.json").write_text("{}")
    before = {path.name for path in run(trained, tmp_path / "before").iterdir()}
    folder = run(tmp_path / "trained", tmp_path / "model")
    assert {path.name for path in folder.iterdir()} == before | {"processor_config.json"}
    assert damaged_files(folder) == []


@pytest.mark.parametrize("own", [0, [0], [0, 321]])
def test_generation_stops_at_each_stop_token_that_was_trained(
    own: int | list[int], trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "trained")
    config = tmp_path / "trained/start/generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": own}))
    settings = tmp_path / "trained/start/tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": "<|im_end|>"}))
    folder = run(tmp_path / "trained", tmp_path / "model")
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [0, 321]


def test_a_model_says_which_checkpoint_its_run_continued_from(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "trained")
    file = tmp_path / "trained/run/train.json"
    continued = {
        "checkpoint": "a/b",
        "step": 6,
        "fingerprint": "4567",
        "differences": ["x", "code"],
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | {"continued_from": continued}))
    folder = run(tmp_path / "trained", tmp_path / "model")
    assert read_manifest(folder)["continued_from"] == continued
    row = "| continued at step 6 from a checkpoint of fingerprint | `4567`; different: x, code |"
    assert f"`0123` |\n{row}\n\n## Settings" in (folder / "README.md").read_text()


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


def test_before_adapters_are_merged_the_model_that_they_were_read_into_is_gone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one fits into memory once."""
    first: list[weakref.ref[PreTrainedModel]] = []

    def seen(*arguments: Any) -> PreTrainedModel:
        model = trained_model(*arguments)
        first.append(weakref.ref(model))
        return model

    def load_again(start: Path, dtype: torch.dtype) -> PreTrainedModel:
        gc.collect()
        assert not first or first[0]() is None
        return load_model(start, dtype)

    monkeypatch.setattr(export_text, "trained_model", seen)
    monkeypatch.setattr(export_text, "load_model", load_again)
    shutil.copytree(trained, tmp_path / "trained", ignore=shutil.ignore_patterns("run"))
    train_run(tmp_path / "trained", "adapted", Adapter(rank=4))
    run(tmp_path / "trained", tmp_path / "model", "adapted")
    assert len(first) == 1


def test_the_tokenizer_has_the_template_that_the_run_spoke_by(
    trained: Path, tmp_path: Path, chat_folder: Path
) -> None:
    assert AutoTokenizer.from_pretrained(chat_folder).chat_template is None
    tokenizer = AutoTokenizer.from_pretrained(run(trained, tmp_path / "model"))
    messages = [{"role": "user", "content": "é"}]
    said = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert said == "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("kept", ["in files", "in the config", "of a processor"])
def test_the_template_of_the_run_is_the_only_one(trained: Path, tmp_path: Path, kept: str) -> None:
    """Bases can have another one for tools, which conversations of the run didn't go through."""
    start = Path(shutil.copytree(trained / "start", tmp_path / "trained/start"))
    shutil.copytree(trained / "run", tmp_path / "trained/run")
    several = {"default": "of the base", "tool_use": "of the base, for tools"}
    if kept == "in files":
        tokenizer = AutoTokenizer.from_pretrained(start)
        tokenizer.chat_template = several
        tokenizer.save_pretrained(start)
        assert (start / "additional_chat_templates/tool_use.jinja").is_file()
    elif kept == "in the config":
        config = json.loads((start / "tokenizer_config.json").read_text())
        listed = [{"name": name, "template": text} for name, text in several.items()]
        (start / "tokenizer_config.json").write_text(
            json.dumps({**config, "chat_template": listed})
        )
    else:
        (start / "chat_template.json").write_text(json.dumps({"chat_template": "of the base"}))
    folder = run(tmp_path / "trained", tmp_path / "model")
    assert AutoTokenizer.from_pretrained(folder).chat_template == CHATML
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix in (".json", ".jinja"):
            assert "of the base" not in file.read_text("utf-8"), file
    listed_files = read_manifest(folder)["files"]
    assert set(listed_files) == {
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and file.name not in (MANIFEST, "lineage.json")
    }


def test_a_template_that_the_config_names_is_exported_as_it_was_trained(
    trained: Path, tmp_path: Path
) -> None:
    start = Path(shutil.copytree(trained / "start", tmp_path / "trained/start"))
    shutil.copytree(trained / "run", tmp_path / "trained/run")
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.chat_template = {"default": "of the base", "short": CHATML}
    tokenizer.save_pretrained(start)
    folder = run(tmp_path / "trained", tmp_path / "model", chat_template="short")
    assert AutoTokenizer.from_pretrained(folder).chat_template == CHATML


@pytest.mark.parametrize("bos", [False, True, "auto"])
@pytest.mark.parametrize("adds", [False, True])
def test_a_text_begins_with_the_bos_token_if_it_did_in_training(
    trained: Path, tmp_path: Path, adds: bool, bos: bool | str
) -> None:
    """For others, by a call of the tokenizer; for moray, by the manifest."""
    start = Path(shutil.copytree(trained / "start", tmp_path / "trained/start"))
    shutil.copytree(trained / "run", tmp_path / "trained/run")
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.bos_token = "<|im_start|>"
    if adds:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(start)
    begins: dict[str, Any] = {"bos": bos} if bos != "auto" else {}
    folder = run(tmp_path / "trained", tmp_path / "model", **begins)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    alone = tokenizer("é", add_special_tokens=False)["input_ids"]
    expected = adds if bos == "auto" else bool(bos)
    assert tokenizer("é")["input_ids"] == [tokenizer.bos_token_id] * expected + alone
    assert read_manifest(folder)["bos"] == expected


def test_without_one_the_tokenizer_stays_as_it_was(trained: Path, tmp_path: Path) -> None:
    start = Path(shutil.copytree(trained / "start", tmp_path / "trained/start"))
    shutil.copytree(trained / "run", tmp_path / "trained/run")
    (start / "chat_template.jinja").write_text("its own")
    folder = run(tmp_path / "trained", tmp_path / "model", chat_template=None)
    tokenizer, before = (AutoTokenizer.from_pretrained(path) for path in (folder, start))
    assert tokenizer.chat_template == "its own"
    assert tokenizer.get_vocab() == before.get_vocab()
    assert tokenizer.eos_token == before.eos_token == "<|im_end|>"


def stored(folder: Path) -> set[str]:
    """The types of the weights in a folder."""
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        return {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118


@pytest.mark.parametrize(
    ("start", "dtype", "expected"),
    [
        ("fp32", "auto", "F32"),
        ("fp32", "bf16", "BF16"),
        ("bf16", "auto", "BF16"),
        ("bf16", "fp32", "F32"),
        ("fp16", "auto", "F16"),
    ],
)
def test_weights_have_the_type_of_the_start_or_the_one_that_the_config_names(
    trained: Path, tmp_path: Path, start: str, dtype: str, expected: str
) -> None:
    folder = tmp_path / "trained"
    shutil.copytree(trained, folder)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    load_model(folder / "start").to(types[start]).save_pretrained(folder / "start")
    before = {path: path.read_bytes() for path in (folder / "start").iterdir()}
    model = run(folder, tmp_path / "model", dtype=dtype)
    assert stored(model) == {expected}
    # Rounded once, from what was trained.
    weights = tensors_of(Path(json.loads((folder / "run/train.json").read_text())["checkpoint"]))
    kind = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}[expected]
    for name, value in AutoModelForCausalLM.from_pretrained(model).state_dict().items():
        assert torch.equal(value, weights[name].to(kind))
    assert {path: path.read_bytes() for path in (folder / "start").iterdir()} == before


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("settings", "older"),
    [
        ({"rope_type": "default"}, {}),
        (_LLAMA3, {"rope_scaling": _LLAMA3}),
        (
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            {"partial_rotary_factor": 0.5},
        ),
    ],
)
def test_rotary_positions_are_also_named_as_transformers_4_reads_them(
    trained: Path, tmp_path: Path, settings: dict[str, Any], older: dict[str, Any]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "trained"))
    config = folder / "start/config.json"
    given = {**settings, "rope_theta": 5e5}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rope_parameters": given}))
    model = run(folder, tmp_path / "model")
    written = json.loads((model / "config.json").read_text())
    assert written["rope_parameters"] == AutoConfig.from_pretrained(model).rope_parameters == given
    names = ("rope_scaling", "partial_rotary_factor")
    assert written["rope_theta"] == 5e5
    assert {name: written[name] for name in names if name in written} == older
    plain = json.loads((run(trained, tmp_path / "plain") / "config.json").read_text())
    assert "rope_theta" not in plain


def held_out_loss(model: Any, tokens: Path) -> float:
    batch = make_batch(np.asarray(StoredSplit(tokens, "test").rows))
    with torch.no_grad():
        total = TokenLoss(model.eval(), has_plain_head(model))(batch)
    return float(total) / len(batch.targets)


@pytest.fixture(scope="module")
def chain(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`start`; an adapter on it in `first`; another on that in `second`; a merged twin of both."""
    folder = tmp_path_factory.mktemp("chain")
    for name in ("start", "tokens"):
        shutil.copytree(trained / name, folder / name)
    for name, start in (("first", "start"), ("second", "first")):
        train_run(folder, f"run of {name}", Adapter(rank=4), start)
        run(folder, folder / name, f"run of {name}", start, merge_adapter=False)
        run(folder, folder / f"merged {name}", f"run of {name}", start)
    return folder


@pytest.mark.parametrize("name", ["first", "second"])
def test_an_adapter_by_itself_is_loaded_as_the_model_it_would_be_merged_into(
    chain: Path, name: str
) -> None:
    assert damaged_files(chain / name) == []
    assert not list((chain / name).glob("model*.safetensors"))
    assert not (chain / name / "config.json").exists()
    merged = AutoModelForCausalLM.from_pretrained(chain / f"merged {name}").state_dict()
    loaded = load_model(chain / name)
    assert not loaded.training
    assert loaded.state_dict().keys() == merged.keys()
    for key, value in loaded.state_dict().items():
        torch.testing.assert_close(value, merged[key], rtol=0, atol=0)
    half = load_model(chain / name, dtype=torch.bfloat16)
    for key, value in half.state_dict().items():
        assert torch.equal(value, merged[key].bfloat16())
    # Angles of rotary positions among them, which aren't stored.
    whole = load_model(chain / f"merged {name}", dtype=torch.bfloat16)
    for (key, buffer), expected in zip(half.named_buffers(), whole.buffers(), strict=True):
        assert buffer.dtype == expected.dtype, key
        assert torch.equal(buffer, expected), key
    tokenizer = AutoTokenizer.from_pretrained(chain / name)
    assert tokenizer.chat_template == CHATML
    assert stop_token_ids(tokenizer, chain / name) == stop_token_ids(tokenizer, chain / "start")
    assert "only the adapter, which is loaded on top of `models/chat`" in (
        chain / name / "README.md"
    ).read_text().replace("\n", " ")


def test_peft_loads_an_adapter_by_itself_onto_its_base_with_the_same_loss(chain: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(chain / "start")
    before = held_out_loss(base, chain / "tokens")
    by_peft = PeftModel.from_pretrained(base, str(chain / "first")).get_base_model()
    found = held_out_loss(by_peft, chain / "tokens")
    assert found < 0.99 * before
    assert held_out_loss(load_model(chain / "first"), chain / "tokens") == pytest.approx(
        found, rel=1e-5
    )


def test_an_adapter_by_itself_has_the_type_that_the_config_names(
    chain: Path, tmp_path: Path
) -> None:
    for dtype, kind in (("auto", torch.float32), ("bf16", torch.bfloat16)):
        folder = run(chain, tmp_path / dtype, "run of first", merge_adapter=False, dtype=dtype)
        weights = load_file(folder / "adapter_model.safetensors")
        assert {value.dtype for value in weights.values()} == {kind}


def test_a_folder_moved_with_its_base_is_loaded_and_one_without_is_refused(
    chain: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(chain, tmp_path / "moved"))
    load_model(moved / "second")
    shutil.rmtree(moved / "start")
    with pytest.raises(UserError) as caught:
        load_model(moved / "second")
    assert str(caught.value).startswith(
        f"{moved}/first: the base of this adapter is missing: no model in {moved}/start; "
    )


def test_a_base_that_has_changed_is_refused(chain: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(chain, tmp_path / "moved"))
    write_manifest(moved / "start", changed=True)
    for load in (load_model, empty_model):
        with pytest.raises(UserError, match="has changed since the adapter was trained"):
            load(moved / "first")


def test_an_adapter_by_itself_is_not_merged_into_4_bit_weights(chain: Path) -> None:
    with pytest.raises(UserError, match=r"^adapter\.quantize_base: .* contains only an adapter"):
        load_model(chain / "first", quantization=Quantization("8bit"))


def test_the_base_is_the_one_of_the_manifest_and_no_other(chain: Path, tmp_path: Path) -> None:
    """A path in adapter_config.json would be followed by transformers, wherever it leads."""
    moved = Path(shutil.copytree(chain, tmp_path / "moved"))
    config = moved / "first/adapter_config.json"
    other = shutil.copytree(chain / "merged second", tmp_path / "other")
    keys = json.loads(config.read_text()) | {"base_model_name_or_path": str(other)}
    config.write_text(json.dumps(keys))
    for key, value in load_model(moved / "first").state_dict().items():
        assert torch.equal(value, load_model(chain / "first").state_dict()[key])
