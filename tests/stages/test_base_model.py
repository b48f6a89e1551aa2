"""A base that runs start from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from architectures import HYBRID, PACKED, build
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from moray.errors import UserError
from moray.model.load import load_model
from moray.proofs.comparison import read_proof
from moray.provenance.manifest import damaged_files, read_manifest
from moray.stages.base_model import base_model
from moray.tasks.language.scratch import train_tokenizer
from moray.tasks.language.tokenizer import load_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_model_from_scratch_learns_its_tokens_from_the_train_split(
    tmp_path: Path, dataset: Path, texts: list[str], scratch: dict[str, Any]
) -> None:
    base_model(tmp_path / "out", scratch, dataset)
    # Every third text is in the train split.
    expected = train_tokenizer(texts[::3], scratch["tokenizer"]["vocab_size"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.get_vocab() == expected.get_vocab()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.vocab_size == len(expected)
    for key in ("hidden_size", "max_position_embeddings"):
        assert getattr(model.config, key) == scratch[key]
    manifest = read_manifest(tmp_path / "out")
    assert manifest["model"] == scratch
    assert manifest["parameters"] == model.num_parameters()
    assert damaged_files(tmp_path / "out") == []


def test_the_same_settings_make_the_same_model(
    tmp_path: Path, dataset: Path, scratch: dict[str, Any]
) -> None:
    for name in ("one", "other"):
        base_model(tmp_path / name, scratch, dataset)
    assert read_manifest(tmp_path / "one") == read_manifest(tmp_path / "other")


def test_a_folder_is_copied_without_what_it_does_not_need(
    tmp_path: Path, model_folder: Path
) -> None:
    source = Path(shutil.copytree(model_folder, tmp_path / "source"))
    (source / "optimizer.bin").write_bytes(b"a pickle")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/stale.safetensors").touch()
    base_model(tmp_path / "out", {"source": "path", "path": str(source)})
    manifest = read_manifest(tmp_path / "out")
    listed = sorted(manifest["files"])
    assert listed == sorted(
        {path.name for path in (tmp_path / "out").iterdir()} - {"manifest.json", "proof.json"}
    )
    assert listed == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    on_disk = {path.name for path in (tmp_path / "out").iterdir()}
    assert {*manifest["files"]} == on_disk - {"manifest.json", "proof.json"}
    weights = load_file(source / "model.safetensors")
    assert manifest["parameters"] == sum(weight.numel() for weight in weights.values())
    # The source is a folder of ours, with a manifest; its own is another.
    assert (source / "manifest.json").exists()
    assert damaged_files(tmp_path / "out") == []


def test_a_new_token_may_be_any_text(tmp_path: Path, model_folder: Path) -> None:
    """Also one that the text has which tokens are compared of."""
    cfg = {"source": "path", "path": str(model_folder), "new_tokens": ["🐍", "日本"]}
    base_model(tmp_path / "out", cfg)
    assert len(load_tokenizer(tmp_path / "out")("🐍日本")["input_ids"]) == 2


@pytest.mark.parametrize("named", ["GPT2Tokenizer", "GPTNeoXTokenizer", "PreTrainedTokenizerFast"])
def test_tokens_are_those_of_the_tokenizer_s_file(
    tmp_path: Path, model_folder: Path, named: str
) -> None:
    """SmolLM2's splits digits, which its class doesn't in transformers 5."""
    source = Path(shutil.copytree(model_folder, tmp_path / "source"))
    file, config = source / "tokenizer.json", source / "tokenizer_config.json"
    plain = Tokenizer.from_file(str(file))
    digits = pre_tokenizers.Digits(individual_digits=True)
    plain.pre_tokenizer = pre_tokenizers.Sequence([digits, plain.pre_tokenizer])
    plain.save(str(file))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": named}))
    base_model(tmp_path / "out", {"source": "path", "path": str(source)})
    text = "x = 1024 + 12"
    expected = plain.encode(text, add_special_tokens=False).ids
    assert load_tokenizer(tmp_path / "out")(text, add_special_tokens=False)["input_ids"] == expected
    # As others read it from there, and after it was written once more.
    load_tokenizer(tmp_path / "out").save_pretrained(tmp_path / "export")
    read = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert read(text, add_special_tokens=False)["input_ids"] == expected
    assert all(one["holds"] for one in read_proof(tmp_path / "out"))


def test_weights_that_transformers_leaves_out_are_announced(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "depth": 1}
    config = hf.Qwen3_5Config(
        text_config=HYBRID["Qwen3.5"]().to_dict(), vision_config={**sizes, "out_hidden_size": 32}
    )
    source = tmp_path / "given"
    hf.Qwen3_5ForConditionalGeneration(config).save_pretrained(source)
    load_tokenizer(model_folder).save_pretrained(source)
    base_model(tmp_path / "tiny", {"source": "path", "path": str(source)})
    assert (
        "model tiny: only the part for text (qwen3_5_text) of qwen3_5 is loaded and exported"
    ) in capsys.readouterr().err
    assert any("visual" in name for name in load_file(tmp_path / "tiny/model.safetensors"))
    assert not any("visual" in name for name in load_model(tmp_path / "tiny").state_dict())


def given(name: str, source: Path, tokenizer: Path, **config: Any) -> Path:
    """A folder with a tiny model of an architecture."""
    made = PACKED[name]()
    for key, value in config.items():
        setattr(made, key, value)
    build(made).save_pretrained(source)
    load_tokenizer(tokenizer).save_pretrained(source)
    return source


def test_layers_that_predict_several_tokens_are_left_out_with_a_word(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = given("GLM-4-MoE", tmp_path / "given", model_folder)
    weights = load_file(source / "model.safetensors")
    # As in published folders: a layer after the last one of the config.
    weights["model.layers.92.eh_proj.weight"] = torch.zeros(32, 64)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    base_model(tmp_path / "tiny", {"source": "path", "path": str(source)})
    assert (
        "model tiny: glm4_moe leaves out weights that it doesn't compute with (1, e.g. "
        "model.layers.92.eh_proj.weight); they aren't exported either"
    ) in capsys.readouterr().err


def test_a_router_s_own_loss_is_said_to_be_left_out(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for balanced in (True, False):
        source = given(
            "Mixtral", tmp_path / str(balanced), model_folder, output_router_logits=balanced
        )
        base_model(tmp_path / f"tiny-{balanced}", {"source": "path", "path": str(source)})
    assert [line for line in capsys.readouterr().err.splitlines() if "load-balancing" in line] == [
        "model tiny-True: the load-balancing loss of its routers is part of the loss only with "
        "train.router_aux_loss: true"
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_finite_numbers_are_named(
    value: float, tmp_path: Path, model_folder: Path
) -> None:
    source = Path(shutil.copytree(model_folder, tmp_path / "source"))
    weights = load_file(source / "model.safetensors")
    names = ["model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"]
    for name in names:
        weights[name][3, 2] = value
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError) as caught:
        base_model(tmp_path / "out", {"source": "path", "path": str(source)})
    assert str(caught.value) == (
        f"models.out: {names[1]} has values that aren't finite numbers (NaN or infinity); copy or "
        "download the model again, or choose another"
    )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local cache of the hub's, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_model_of_the_hub_comes_by_its_commit(
    tmp_path: Path, hub: Path, model_folder: Path
) -> None:
    shutil.copytree(model_folder, hub / "models--owner--name/snapshots" / COMMIT)
    base_model(tmp_path / "out", {"source": "hub", "repo_id": "owner/name", "revision": COMMIT})
    name = "model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (model_folder / name).read_bytes()
    assert read_manifest(tmp_path / "out")["model"]["revision"] == COMMIT


def test_random_weights_are_those_that_the_architecture_draws(
    tmp_path: Path, model_folder: Path
) -> None:
    """Of the source, only config and tokenizer are needed."""
    source = tmp_path / "source"
    shutil.copytree(model_folder, source, ignore=shutil.ignore_patterns("*.safetensors"))
    cfg = {"source": "path", "path": str(source), "random_weights": True, "seed": 3}
    base_model(tmp_path / "out", cfg)
    torch.manual_seed(3)
    config = AutoConfig.from_pretrained(model_folder)
    drawn = AutoModelForCausalLM.from_config(config).state_dict()
    made = load_model(tmp_path / "out").state_dict()
    assert made.keys() == drawn.keys()
    assert all(torch.equal(made[name], drawn[name]) for name in drawn)
    for name in ("tokenizer.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (model_folder / name).read_bytes()


def renamed_weights(source: Path) -> None:
    (source / "model.safetensors").rename(source / "pytorch_model.bin")


def half_of_the_weights(source: Path) -> None:
    whole = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def more_tokens_than_embeddings(source: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(["<a>", "<b>"])
    tokenizer.save_pretrained(source)


def no_stop_token(source: Path) -> None:
    config = json.loads((source / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (source / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (shutil.rmtree, ""),
        (renamed_weights, ""),
        (lambda source: (source / "config.json").unlink(), ""),
        (half_of_the_weights, "^models.out: .*source/model.safetensors: can.t read the weights"),
        (no_stop_token, "^models.out: .*source: the tokenizer has no eos_token, so there is no"),
        (
            more_tokens_than_embeddings,
            "^models.out: 2 tokens of the tokenizer have no embedding, e.g. '<a>'; the model has",
        ),
        (
            lambda source: (source / "tokenizer.json").write_text("{"),
            "^models.out: .*source: can't load the tokenizer",
        ),
    ],
    ids=[
        "missing",
        "no weights",
        "no config",
        "half of the weights",
        "no stop token",
        "tokens",
        "tokenizer",
    ],
)
def test_a_bad_folder_is_refused_and_leaves_no_manifest_behind(
    tmp_path: Path, model_folder: Path, spoil: Callable[[Path], object], problem: str
) -> None:
    source = Path(shutil.copytree(model_folder, tmp_path / "source"))
    spoil(source)
    shutil.copytree(model_folder, tmp_path / "out")
    with pytest.raises(UserError, match=problem) as caught:
        base_model(tmp_path / "out", {"source": "path", "path": str(source)})
    assert not (tmp_path / "out/manifest.json").exists()
    # The copy is gone, so it can't be looked at.
    assert str(tmp_path / "out") not in str(caught.value)


def test_a_commit_that_cannot_be_had_leaves_no_manifest_behind(tmp_path: Path, hub: Path) -> None:
    cfg = {"source": "hub", "repo_id": "owner/name", "revision": COMMIT}
    with pytest.raises(UserError, match=r"^owner/name: can't download"):
        base_model(tmp_path / "out", cfg)
    assert not (tmp_path / "out/manifest.json").exists()
