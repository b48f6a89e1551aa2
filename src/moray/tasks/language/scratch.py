"""Models with random weights: a Llama with a tokenizer of its own, or another model's config."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from moray.model.load import built, load_config

_END = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; one special token is BOS, EOS and padding token.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_END, eos_token=_END, pad_token=_END
    )


def llama_config(cfg: dict[str, Any], vocab_size: int) -> LlamaConfig:
    """The config of a Llama without its special tokens, by a `scratch` section."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=cfg["hidden_size"],
        intermediate_size=cfg["intermediate_size"],
        num_hidden_layers=cfg["num_hidden_layers"],
        num_attention_heads=cfg["num_attention_heads"],
        num_key_value_heads=cfg["num_key_value_heads"],
        max_position_embeddings=cfg["max_position_embeddings"],
        tie_word_embeddings=cfg["tie_word_embeddings"],
        # With a padding token here, its embedding would be zero and never trained. But the same
        # token is also the BOS token.
        pad_token_id=None,
    )


def save_llama(folder: Path, tokenizer: PreTrainedTokenizerFast, cfg: dict[str, Any]) -> None:
    """Write a randomly initialised Llama, by a `scratch` section, and its tokenizer to a folder."""
    config = llama_config(cfg, len(tokenizer))
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cfg["seed"])
        model = LlamaForCausalLM(config)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_random_weights(folder: Path, seed: int) -> None:
    """Write random weights of a folder's config into it, drawn as its architecture draws them.

    Raises:
        UserError: if the config isn't that of a causal language model.
    """
    config = load_config(folder)
    # It is of the weights that these replace.
    vars(config).pop("quantization_config", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = built(config, folder, torch.float32)
    settings = folder / "generation_config.json"
    content = settings.read_bytes() if settings.exists() else None
    model.save_pretrained(folder)
    if content is not None:
        settings.write_bytes(content)
