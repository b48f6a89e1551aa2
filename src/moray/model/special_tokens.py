"""Give a base model tokens of its own, and another stop token."""

from pathlib import Path

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from moray.errors import UserError
from moray.model.adapter import NEW_TOKENS
from moray.model.folder import stored_dtype
from moray.model.load import load_model

_COLUMNS = 128


def add_tokens(
    folder: Path, tokenizer: PreTrainedTokenizerFast, words: list[str], key: str
) -> None:
    """Add special tokens to the model in a folder.

    Their rows begin as the mean of the others, so that no new token is likelier than those at
    first. Source: Hewitt, "Initializing New Word Embeddings for Pretrained Language Models", 2021.

    Args:
        folder: Hugging Face folder; its weights, config and tokenizer are replaced.
        tokenizer: its tokenizer.
        words: the tokens.
        key: config key that names them, for errors.

    Raises:
        UserError: if the model has one of them already.
    """
    model = load_model(folder, stored_dtype(folder))
    num_rows = len(model.get_input_embeddings().weight)
    old = {word: id for word, id in tokenizer.get_vocab().items() if id < num_rows}
    if known := next((word for word in words if word in old), None):
        raise UserError(key, f"the model has {known!r} already", "remove it")
    tokenizer.add_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    ids = tokenizer.convert_tokens_to_ids(words)
    if max(ids) >= num_rows:
        # No more rows than tokens, or llama.cpp refuses the model.
        model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    given = sorted(old.values())
    for rows in _embeddings(model):
        # All columns at once would take four times the memory of an embedding in bf16.
        for columns in torch.split(rows.view(len(rows), -1), _COLUMNS, dim=1):
            columns[ids] = columns[given].double().mean(0).to(rows.dtype)
    setattr(model.config, NEW_TOKENS, ids)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def set_eos_token(folder: Path, tokenizer: PreTrainedTokenizerFast, word: str, key: str) -> None:
    """Make a token the one that ends texts and answers.

    Args:
        folder: Hugging Face folder; its tokenizer is replaced.
        tokenizer: its tokenizer.
        word: the token.
        key: config key that names it, for errors.

    Raises:
        UserError: if the tokenizer doesn't have it.
    """
    if word not in tokenizer.get_vocab():
        raise UserError(key, f"the tokenizer has no token {word!r}", "add it to new_tokens")
    tokenizer.eos_token = word
    tokenizer.save_pretrained(folder)


def _embeddings(model: PreTrainedModel) -> list[Tensor]:
    """The tensors with a row for each token, tied ones once."""
    head = model.get_output_embeddings()
    found = [model.get_input_embeddings().weight, head.weight, getattr(head, "bias", None)]
    return list({id(one): one.data for one in found if one is not None}.values())
