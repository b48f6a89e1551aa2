"""From a run's last checkpoint to a Hugging Face folder."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from conversations import CHATML
from exported import run, train_run
from older_files import OLDER, change
from safetensors import safe_open
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    ProcessorMixin,
)

from moray.model.load import load_model
from moray.proofs.comparison import read_proof
from moray.provenance.manifest import MANIFEST, damaged_files, read_manifest

QWEN3_SWITCHED = (
    "{% for m in messages %}{{ m.role }}: {{ m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt and enable_thinking is false %}<think></think>{% endif %}"
)


def test_what_transformers_reads_back_is_compared_with_what_was_trained(
    trained: Path, tmp_path: Path
) -> None:
    found = {one["what"]: one for one in read_proof(run(trained, tmp_path / "model"))}
    loss = found.pop("loss of the exported model on validation rows")
    assert loss["here"] == pytest.approx(loss["plain"], rel=1e-5)
    assert found["stop tokens of generation"]["plain"] == [0, 321]
    assert all(one["holds"] for one in found.values())


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


@pytest.mark.parametrize("older", OLDER)
def test_transformers_reads_the_tokenizer_of_the_run_whatever_older_files_say(
    older: Callable[[Path], None], trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "trained")
    start = tmp_path / "trained/start"
    older(start)
    expected = AutoTokenizer.from_pretrained(start)
    folder = run(tmp_path / "trained", tmp_path / "model")
    found = AutoTokenizer.from_pretrained(folder)
    assert found.special_tokens_map == expected.special_tokens_map
    assert found.get_vocab() == expected.get_vocab()
    assert found.chat_template == CHATML
    stops = GenerationConfig.from_pretrained(folder).eos_token_id
    assert expected.eos_token_id in (stops if isinstance(stops, list) else [stops])


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


def test_the_tokenizer_has_the_template_that_the_run_spoke_by(
    trained: Path, tmp_path: Path, chat_folder: Path
) -> None:
    assert AutoTokenizer.from_pretrained(chat_folder).chat_template is None
    tokenizer = AutoTokenizer.from_pretrained(run(trained, tmp_path / "model"))
    messages = [{"role": "user", "content": "é"}]
    said = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert said == "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("own", [QWEN3_SWITCHED, None])
def test_the_template_has_the_variables_of_the_training_by_default(
    trained: Path, tmp_path: Path, own: str | None
) -> None:
    shutil.copytree(trained, tmp_path / "trained")
    if own is None:
        (tmp_path / "trained/start/chat_template.jinja").write_text(QWEN3_SWITCHED)
    keys: dict[str, Any] = {"chat_template": own, "template_variables": {"enable_thinking": False}}
    folder = run(tmp_path / "trained", tmp_path / "model", **keys)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = partial(
        tokenizer.apply_chat_template,
        [{"role": "user", "content": "é"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert said() == "user: é\n<think></think>"
    assert said(enable_thinking=True) == "user: é\n"
    card = (folder / "README.md").read_text()
    assert "`enable_thinking: false` by default, as in training" in card


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_a_processor_has_that_template_too(name: str, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "trained")
    change(tmp_path / "trained/start" / name, chat_template="older")
    for own, expected in ((None, "older"), (CHATML, CHATML)):
        folder = run(tmp_path / "trained", tmp_path / expected[:5], chat_template=own)
        assert ProcessorMixin.get_processor_dict(folder)[0]["chat_template"] == expected


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
        if file.is_file() and file.name not in (MANIFEST, "lineage.json", "proof.json")
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


def test_a_training_that_rounding_undoes_is_warned_of(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "trained"))
    run(folder, tmp_path / "changed", dtype="bf16")
    assert "rounded" not in capsys.readouterr().err
    weights = tensors_of(Path(json.loads((folder / "run/train.json").read_text())["checkpoint"]))
    start = load_model(folder / "start")
    start.load_state_dict({name: weights[name] * (1 + 1e-5) for name in start.state_dict()})
    start.save_pretrained(folder / "start")
    run(folder, tmp_path / "same", dtype="fp32")
    assert "rounded" not in capsys.readouterr().err
    run(folder, tmp_path / "lost", dtype="bf16")
    warning = "warning: model of tuned: rounded to bfloat16, 100% of the trained weights are those"
    assert warning in capsys.readouterr().err


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
