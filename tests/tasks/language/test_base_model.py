"""Tokens that a base model gets: what their rows are, and that they are trained."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from older_files import END, OLD, OLDER, WORDS, sentencepiece
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from moray.config.schema.train import Adapter
from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.model.adapter import add_adapter, load_adapter, merged, save_adapter
from moray.model.folder import base_of_adapter
from moray.model.load import load_model
from moray.provenance.manifest import damaged_files
from moray.stages.base_model import base_model
from moray.tasks.language.base_model import add_tokens, set_eos_token
from moray.tasks.language.encode import Encoder
from moray.tasks.language.tokenizer import load_tokenizer, stop_token_ids

LLAMA: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def tied(rows: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=rows, tie_word_embeddings=True, **LLAMA))


def apart(rows: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=rows, tie_word_embeddings=False, **LLAMA))


def with_bias(rows: int) -> PreTrainedModel:
    model = GPTJForCausalLM(
        GPTJConfig(vocab_size=rows, n_embd=16, n_layer=1, n_head=2, rotary_dim=4)
    )
    torch.nn.init.normal_(model.lm_head.bias)
    return model


def folder_of(model: PreTrainedModel, model_folder: Path, folder: Path) -> Path:
    model.bfloat16().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_folder / name, folder)
    return folder


@pytest.mark.parametrize("spare", [0, 40])
@pytest.mark.parametrize("make", [tied, apart, with_bias])
def test_rows_of_new_tokens_are_the_mean_of_the_others_which_stay(
    make: Any, spare: int, model_folder: Path, tmp_path: Path
) -> None:
    count = len(load_tokenizer(model_folder))
    folder = folder_of(make(count + spare), model_folder, tmp_path / "model")
    before = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    add_tokens(folder, load_tokenizer(folder), WORDS, "models.m.new_tokens")
    tokenizer = load_tokenizer(folder)
    ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in WORDS]
    assert ids == [[count], [count + 1]]
    assert tokenizer.decode([5, count, 6], skip_special_tokens=True) == tokenizer.decode([5, 6])
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    rows = count + (spare or 2)
    assert model.config.vocab_size == rows
    for name, value in model.state_dict().items():
        old = before[name]
        if len(old) != count + spare:
            assert torch.equal(value, old)
            continue
        assert len(value) == rows
        assert torch.equal(value[:count], old[:count])
        mean = old[:count].double().mean(0).bfloat16()
        assert torch.equal(value[count : count + 2], torch.stack([mean, mean]))


def test_a_token_that_the_model_has_is_refused_and_one_without_a_row_gets_it(
    model_folder: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(model_folder)
    count = len(tokenizer)
    folder = folder_of(tied(count), model_folder, tmp_path / "model")
    known = tokenizer.eos_token
    with pytest.raises(UserError) as caught:
        add_tokens(folder, load_tokenizer(folder), [known], "models.m.new_tokens")
    assert str(caught.value) == f"models.m.new_tokens: the model has {known!r} already; remove it"
    tokenizer.add_tokens(WORDS)
    tokenizer.save_pretrained(folder)
    add_tokens(folder, load_tokenizer(folder), WORDS, "models.m.new_tokens")
    assert load_tokenizer(folder).convert_tokens_to_ids(WORDS) == [count, count + 1]
    assert len(load_model(folder).get_input_embeddings().weight) == count + 2


def test_rows_between_the_model_s_and_the_new_ones_are_filled_too(
    model_folder: Path, tmp_path: Path
) -> None:
    """As for a [PAD] that someone added to the tokenizer alone."""
    tokenizer = load_tokenizer(model_folder)
    count = len(tokenizer)
    folder = folder_of(apart(count), model_folder, tmp_path / "model")
    tokenizer.add_tokens(["[PAD]"])
    tokenizer.save_pretrained(folder)
    add_tokens(folder, load_tokenizer(folder), WORDS, "models.m.new_tokens")
    model = load_model(folder, torch.bfloat16)
    assert model.config.new_token_ids == [count + 1, count + 2]
    for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
        rows = embedding.weight.detach()
        mean = rows[:count].double().mean(0).bfloat16()
        assert torch.equal(rows[count:], mean.expand(3, -1))


def test_a_token_becomes_the_one_that_stops_if_the_tokenizer_has_it(
    model_folder: Path, tmp_path: Path
) -> None:
    folder = folder_of(tied(len(load_tokenizer(model_folder))), model_folder, tmp_path / "model")
    add_tokens(folder, load_tokenizer(folder), WORDS, "models.m.new_tokens")
    set_eos_token(folder, load_tokenizer(folder), WORDS[1], "models.m.eos_token")
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (WORDS[1], len(tokenizer) - 1)
    with pytest.raises(UserError) as caught:
        set_eos_token(folder, tokenizer, "<none>", "models.m.eos_token")
    assert str(caught.value) == (
        "models.m.eos_token: the tokenizer has no token '<none>'; add it to new_tokens"
    )


@pytest.mark.parametrize("make", [tied, apart])
def test_with_an_adapter_only_their_rows_are_trained_and_merged(
    make: Any, model_folder: Path, tmp_path: Path
) -> None:
    count = len(load_tokenizer(model_folder))
    folder = folder_of(make(count), model_folder, tmp_path / "model")
    add_tokens(folder, load_tokenizer(folder), WORDS, "models.m.new_tokens")
    adapter, tokens = Adapter(rank=2), torch.tensor([[1, count, 5, count + 1, 3]])
    model = load_model(folder)
    base = {name: value.clone() for name, value in model.state_dict().items()}
    add_adapter(model, adapter, seed=0)
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    for _ in range(2):
        torch.autograd.backward(model(input_ids=tokens, labels=tokens).loss)
        optimizer.step()
        optimizer.zero_grad()
    save_adapter(model, adapter, tmp_path / "adapter", torch.float32)
    whole = merged(load_model(folder), tmp_path / "adapter")
    with torch.no_grad():
        expected = model.eval()(input_ids=tokens).logits
        torch.testing.assert_close(whole(input_ids=tokens).logits, expected, rtol=1e-4, atol=1e-5)
    for embedding, name in (
        (whole.get_input_embeddings(), "model.embed_tokens.weight"),
        (whole.get_output_embeddings(), "lm_head.weight"),
    ):
        changed = (embedding.weight != base[name]).any(1).nonzero().flatten().tolist()
        assert changed == [count, count + 1]


@pytest.mark.parametrize("older", OLDER)
def test_transformers_reads_the_stop_token_of_the_config_whatever_older_files_say(
    older: Callable[[Path], None], model_folder: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(model_folder, tmp_path / "source"))
    count = len(AutoTokenizer.from_pretrained(source))
    older(source)
    folder = tmp_path / "base"
    asked = {"new_tokens": WORDS, "eos_token": END}
    base_model(folder, {"source": "path", "path": str(source), **asked})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids(WORDS) == [count, count + 1]
    assert (tokenizer.eos_token, tokenizer.bos_token) == (END, OLD)
    assert AutoConfig.from_pretrained(folder).eos_token_id == count + 1
    stops = AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id
    assert count + 1 in (stops if isinstance(stops, list) else [stops])
    ours = load_tokenizer(folder)
    [document] = Encoder(ours, 64).encode_documents([Document(text="a")], 0, False)
    assert document.tokens[-1] == count + 1
    assert count + 1 in stop_token_ids(ours, folder)


def test_llama_cpp_reads_new_tokens_beside_a_file_of_sentencepiece(
    model_folder: Path, tmp_path: Path
) -> None:
    """Its converter looks for them in this key."""
    source = Path(shutil.copytree(model_folder, tmp_path / "source"))
    sentencepiece(source)
    base_model(tmp_path / "base", {"source": "path", "path": str(source), "new_tokens": WORDS})
    config = json.loads((tmp_path / "base/tokenizer_config.json").read_text())
    count = len(AutoTokenizer.from_pretrained(source))
    found = {int(id): token for id, token in config["added_tokens_decoder"].items()}
    assert {id: found[id]["content"] for id in found} == dict(enumerate(WORDS, count)) | {0: OLD}
    assert all(token["special"] for token in found.values())


def by_peft(model_folder: Path, folder: Path, **keys: Any) -> Path:
    """A folder with an adapter of a model, as PEFT alone writes it."""
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    keys = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **keys}
    model: Any = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **keys))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(str(folder))
    return folder


@torch.no_grad()
def test_a_base_with_an_adapter_is_what_peft_makes_of_both(
    model_folder: Path, tmp_path: Path
) -> None:
    adapter = by_peft(model_folder, tmp_path / "adapter")
    cfg = {"source": "path", "path": str(model_folder), "adapter": str(adapter)}
    output = tmp_path / "out"
    base_model(output, cfg)
    assert damaged_files(output) == []
    tokens = torch.arange(40).view(2, 20)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    expected = PeftModel.from_pretrained(base, str(adapter)).eval()(tokens).logits
    torch.testing.assert_close(load_model(output)(tokens).logits, expected, rtol=1e-5, atol=1e-5)
    # A run trains it further from its own weights, on the base alone.
    model = load_model(base_of_adapter(output))
    add_adapter(model, Adapter(rank=4, alpha=8, target_modules=["q_proj", "v_proj"]), seed=7)
    load_adapter(model, output)
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-6, atol=1e-6)
    tokenizer = load_tokenizer(output)
    assert tokenizer.get_vocab() == load_tokenizer(model_folder).get_vocab()
    assert stop_token_ids(tokenizer, output) == stop_token_ids(tokenizer, model_folder)


def test_an_adapter_of_another_scale_or_model_is_refused(
    model_folder: Path, tmp_path: Path
) -> None:
    adapter = by_peft(model_folder, tmp_path / "adapter")
    model = load_model(model_folder)
    own = Adapter(rank=4, alpha=16, target_modules=["q_proj", "v_proj"])
    add_adapter(model, own, seed=0)
    with pytest.raises(UserError, match=r"adapter\.alpha: .*lora_alpha: 8, .*lora_alpha: 16"):
        load_adapter(model, adapter)
    other = folder_of(tied(512), model_folder, tmp_path / "other")
    cfg = {"source": "path", "path": str(other), "adapter": str(adapter)}
    with pytest.raises(UserError, match=r"models\.out\.adapter: .*check that it is an adapter of"):
        base_model(tmp_path / "out", cfg)
    assert not (tmp_path / "out").exists()
    # PEFT would begin anew what is missing, and leave out what is too much.
    for name, change in (("less", lambda state: state.popitem()), ("more", extend)):
        folder = Path(shutil.copytree(adapter, tmp_path / name))
        state = load_file(folder / "adapter_model.safetensors")
        change(state)
        save_file(state, folder / "adapter_model.safetensors")
        cfg = {"source": "path", "path": str(model_folder), "adapter": str(folder)}
        with pytest.raises(UserError, match=r"models\.out\.adapter: .* weights .*lora_"):
            base_model(tmp_path / "out", cfg)


def extend(state: dict[str, torch.Tensor]) -> None:
    name, value = next(iter(state.items()))
    state[name.replace("layers.0", "layers.9")] = value.clone()
