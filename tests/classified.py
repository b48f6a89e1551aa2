"""Texts with labels, and a small BERT that knows their words, as files of a user."""

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

# The words that decide on the label, which is a number, as files often have them.
OPINIONS = (("awful", "dull", "poor"), ("fine", "great", "superb"))
OTHERS = ("a", "film", "it", "play", "the", "was")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def write_reviews(file: Path) -> None:
    """Write rows with a text, in which one word is an opinion, and a label."""
    draw = random.Random(0)
    rows = []
    for _ in range(240):
        label = draw.randrange(2)
        words = [*draw.choices(OTHERS, k=draw.randint(2, 9)), draw.choice(OPINIONS[label])]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": label})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_bert(folder: Path) -> None:
    """Write a classifier of as many classes, which are others."""
    words = (*SPECIAL, *OTHERS, *(word for of in OPINIONS for word in of))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(1)
    BertForSequenceClassification(config).save_pretrained(folder)
