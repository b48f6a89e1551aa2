"""A model from nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from moray.errors import UserError
from moray.tasks.language.scratch import save_llama, save_random_weights, train_tokenizer

UNSEEN = [
    "",
    " ",
    "\n\n\t  \r\n",
    "plain ASCII, with 'quotes' and 12345",
    "naïve Straße, данные, 東京, שלום, العربية, ไทย",
    "🐍👩‍👩‍👧🏳️‍🌈 \N{COMBINING ACUTE ACCENT}e\N{COMBINING ACUTE ACCENT}",
    "".join(map(chr, range(128))),
    "\N{BYTE ORDER MARK}\N{REPLACEMENT CHARACTER}\N{NO-BREAK SPACE}\U0010ffff",
    " leading and trailing ",
    "didn 't stop . there , was !",
]


def test_any_text_comes_back_from_its_tokens(
    model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    for one in (tokenizer, AutoTokenizer.from_pretrained(model_folder)):
        ids = [one(text, add_special_tokens=False)["input_ids"] for text in UNSEEN]
        assert [one.decode(tokens) for tokens in ids] == UNSEEN


def test_the_vocabulary_has_the_size_asked_for_where_the_corpus_yields_it(
    texts: list[str],
) -> None:
    assert len(train_tokenizer(texts, 300)) == 300
    # Of nothing, only the 256 bytes and the special token can be made.
    assert len(train_tokenizer([""], 300)) == 257


def test_merges_are_learnt_from_the_corpus() -> None:
    tokenizer = train_tokenizer(["snake snake snake"] * 10, 300)
    assert tokenizer.tokenize("snake") == ["snake"]
    assert len(tokenizer.tokenize("eel")) == 3


def test_one_special_token_opens_stops_and_pads(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    assert ids == {tokenizer.convert_tokens_to_ids("<|endoftext|>")}
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""


def test_the_same_corpus_makes_the_same_tokenizer(texts: list[str]) -> None:
    one, other = (train_tokenizer(iter(texts), 320).backend_tokenizer.to_str() for _ in range(2))
    assert one == other


@pytest.fixture
def save(tmp_path: Path, tokenizer: PreTrainedTokenizerFast, scratch: dict[str, Any]) -> Any:
    def save(name: str, **changes: Any) -> Path:
        folder = tmp_path / name
        save_llama(folder, tokenizer, scratch | changes)
        return folder

    return save


def test_the_seed_alone_decides_the_weights(save: Any) -> None:
    torch.manual_seed(5)
    first = save("first", seed=3)
    torch.manual_seed(6)
    again = save("again", seed=3)
    other = save("other", seed=4)
    one, two, three = (
        (folder / "model.safetensors").read_bytes() for folder in (first, again, other)
    )
    assert one == two != three


def test_making_a_model_leaves_other_random_numbers_alone(save: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    save("model")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("tied", [True, False])
def test_the_token_that_opens_documents_is_learnt(
    save: Any, tokenizer: PreTrainedTokenizerFast, tied: bool
) -> None:
    """Pads too, which in transformers can mean: zeros, and no gradient."""
    folder = save("model", tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_pretrained(folder)
    embedding = model.get_input_embeddings()
    opening = embedding(torch.tensor([[tokenizer.bos_token_id]]))
    assert opening.abs().sum() > 0
    (gradient,) = torch.autograd.grad((opening**2).sum(), embedding.weight)
    assert gradient[tokenizer.bos_token_id].abs().sum() > 0


def test_the_folder_knows_its_special_tokens(save: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    folder = save("model")
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    for said in (config, generation):
        assert said["bos_token_id"] == said["eos_token_id"] == tokenizer.eos_token_id
    assert generation["pad_token_id"] == tokenizer.pad_token_id
    assert AutoTokenizer.from_pretrained(folder).eos_token == tokenizer.eos_token


def test_a_config_that_its_architecture_does_not_take_costs_one_line(
    tmp_path: Path, model_folder: Path
) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "swish2"}))
    with pytest.raises(UserError) as caught:
        save_random_weights(tmp_path, seed=0)
    assert str(caught.value) == (
        f"{tmp_path}: can't load a causal language model (config.json has 'swish2', which "
        "transformers doesn't know); check the folder"
    )
