"""Tokenizers that write spaces into the words behind them, as those of SentencePiece do."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

STOP = "<|endoftext|>"
# Texts that tokenizers treat in ways of their own.
SPECIAL = ["a", "é", "🐍", "  two", "\n\tx = 1\n"]


def metaspace(unigram: bool, scheme: str, texts: list[str]) -> Tokenizer:
    """A tokenizer as SentencePiece makes them, for any text by its bytes."""
    trainer: trainers.Trainer
    specials = ["<unk>", "<s>", STOP, *(f"<0x{byte:02X}>" for byte in range(256))]
    if unigram:
        backend = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=600, special_tokens=specials, unk_token="<unk>", show_progress=False
        )
    else:
        backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=specials, limit_alphabet=80, show_progress=False
        )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    spaces = decoders.Replace("▁", " ")
    backend.decoder = decoders.Sequence(
        [spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.train_from_iterator([*texts, " ".join(SPECIAL)], trainer)
    return backend
