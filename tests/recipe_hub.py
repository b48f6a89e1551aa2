"""What the files of `config/recipes` name, made small, in a hub of one's own.

Models are random, but have the architecture, the kind of tokenizer and the chat template of those
that are named; datasets have their files, columns and splits.
"""

import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers as hf
from hub_server import Hub, Repository
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from turn_templates import GEMMA3, QWEN3

Row = dict[str, Any]

_WORDS = """
the a river stone count of seven trees is why and how 東京 naïve x = 3 + 4 <b> ### 🐍
"""
_LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
_VOCABULARY = 320


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(_WORDS.split(), k=draw.randint(2, words)))


def _texts() -> list[str]:
    draw = random.Random(0)
    return [_text(draw, 30) for _ in range(100)]


def _byte_level(specials: list[str], **roles: str) -> hf.PreTrainedTokenizerFast:
    """As GPT-2's, Qwen's and Llama 3's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY - len(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)
    fast.add_tokens(specials, special_tokens=True)
    return fast


def _sentencepiece(specials: list[str], **roles: str) -> hf.PreTrainedTokenizerFast:
    """As Gemma's: pieces with `▁` for spaces, and bytes for what isn't in the vocabulary."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*specials, *pieces], show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    # Only these are special; bytes are ordinary tokens.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [
        token for token in state["added_tokens"] if token["content"] in specials
    ]
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), **roles
    )


def _with_bos(tokenizer: hf.PreTrainedTokenizerFast) -> hf.PreTrainedTokenizerFast:
    """A call of it adds the BOS token."""
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    return tokenizer


def _smollm2(folder: Path) -> None:
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    end = marks[0]
    tokenizer = _byte_level(marks, bos_token=end, eos_token=end, unk_token=end)
    config = hf.LlamaConfig(
        **_LLAMA, **_HEADS, vocab_size=len(tokenizer), tie_word_embeddings=True, rope_theta=1e5
    )
    _save(folder, config, tokenizer, end)


def _qwen3(folder: Path, tied: bool, stop: str = "<|im_end|>") -> None:
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    tokenizer = _byte_level(marks, eos_token=stop, pad_token=marks[0])
    tokenizer.chat_template = QWEN3
    config = hf.Qwen3Config(
        **_LLAMA, **_HEADS, head_dim=16, vocab_size=len(tokenizer), tie_word_embeddings=tied
    )
    _save(folder, config, tokenizer, stop)


def _llama32(folder: Path) -> None:
    marks = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer = _with_bos(_byte_level(marks, bos_token=marks[0], eos_token=marks[1]))
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    # 4 bits need a width of 64.
    sizes = {**_LLAMA, "hidden_size": 64, "intermediate_size": 128}
    config = hf.LlamaConfig(
        **sizes,
        **_HEADS,
        vocab_size=len(tokenizer),
        max_position_embeddings=131_072,
        rope_parameters=scaling,
        tie_word_embeddings=True,
    )
    _save(folder, config, tokenizer, marks[1])


def _gemma3(folder: Path) -> None:
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    marks += ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    roles = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    tokenizer = _with_bos(_sentencepiece(marks, **roles))
    tokenizer.chat_template = GEMMA3
    ids = tokenizer.convert_tokens_to_ids
    text = hf.Gemma3TextConfig(
        **_LLAMA,
        **_HEADS,
        head_dim=16,
        vocab_size=len(tokenizer),
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    )
    config = hf.Gemma3Config(
        text_config=text.to_dict(),
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
        image_token_id=ids("<image_soft_token>"),
        boi_token_id=ids("<start_of_image>"),
        eoi_token_id=ids("<end_of_image>"),
    )
    _save(folder, config, tokenizer, "<eos>", "<end_of_turn>")


def _save(
    folder: Path, config: hf.PretrainedConfig, tokenizer: hf.PreTrainedTokenizerFast, *stops: str
) -> None:
    config.pad_token_id = tokenizer.pad_token_id
    config.bos_token_id = tokenizer.bos_token_id
    config.eos_token_id = tokenizer.convert_tokens_to_ids(stops[0])
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(stops))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _vit(folder: Path) -> None:
    config = hf.ViTConfig(
        **_LLAMA, num_attention_heads=4, image_size=32, patch_size=16, num_labels=1000
    )
    torch.manual_seed(0)
    hf.ViTForImageClassification(config).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    hf.ViTImageProcessor(size=size).save_pretrained(folder)


_MODELS: dict[str, Callable[[Path], None]] = {
    "HuggingFaceTB/SmolLM2-135M": _smollm2,
    "Qwen/Qwen3-0.6B": lambda folder: _qwen3(folder, tied=True),
    "Qwen/Qwen3-0.6B-Base": lambda folder: _qwen3(folder, tied=True, stop="<|endoftext|>"),
    "Qwen/Qwen3-8B": lambda folder: _qwen3(folder, tied=False),
    "meta-llama/Llama-3.2-1B": _llama32,
    "google/gemma-3-4b-it": _gemma3,
    "google/vit-base-patch16-224": _vit,
}


def _asked(draw: random.Random, answers: int = 1, system: bool = False) -> list[Row]:
    turns: list[Row] = [{"content": "Be brief.", "role": "system"}] if system else []
    for _ in range(answers):
        turns.append({"content": _text(draw, 12), "role": "user"})
        turns.append({"content": _text(draw, 12), "role": "assistant"})
    return turns


def _talks(draw: random.Random, number: int) -> Row:
    messages = _asked(draw, 1 + number % 3, system=number % 4 == 0)
    first = next(message["content"] for message in messages if message["role"] == "user")
    return {"prompt": first, "prompt_id": f"{number:064x}", "messages": messages}


def _pair(draw: random.Random, number: int) -> Row:
    chosen = _asked(draw)
    rejected = [chosen[0], {"content": _text(draw, 12), "role": "assistant"}]
    return {
        "prompt": chosen[0]["content"],
        "prompt_id": f"{number:064x}",
        "chosen": chosen,
        "rejected": rejected,
        "messages": chosen,
        "score_chosen": 8.5,
        "score_rejected": 6.0,
    }


def _alpaca(draw: random.Random, number: int) -> Row:
    context = _text(draw, 8) if number % 3 == 0 else ""
    return {"output": _text(draw, 12), "input": context, "instruction": _text(draw, 12)}


def _dolly(draw: random.Random, number: int) -> Row:
    row = _alpaca(draw, number)
    asked = {"instruction": row["instruction"], "context": row["input"]}
    return {**asked, "response": row["output"], "category": "open_qa"}


def _wikitext(draw: random.Random, number: int) -> Row:
    kinds = ["", f" = {_text(draw, 4)} = \n", f" {_text(draw, 30)} \n"]
    return {"text": kinds[min(number % 5, 2)]}


def _gsm8k(draw: random.Random, number: int) -> Row:
    answer = f"{_text(draw, 10)} <<3+{number}={3 + number}>>{3 + number}\n#### {3 + number}"
    return {"question": _text(draw, 12), "answer": answer}


def _parquet(rows: list[Row]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def _in_parquet(folder: str, *splits: str) -> dict[str, str]:
    """The files of splits in a folder, as the Hub names them."""
    return {split: f"{folder}/{split}-00000-of-00001.parquet" for split in splits}


# By dataset: the maker of a row, its file for each split, and the names of the splits' files.
_TABLES: dict[str, tuple[Callable[[random.Random, int], Row], Mapping[str, str]]] = {
    "HuggingFaceTB/smol-smoltalk": (
        lambda draw, number: {"messages": _talks(draw, number)["messages"], "source": "x"},
        _in_parquet("data", "train", "test"),
    ),
    "yahma/alpaca-cleaned": (_alpaca, {"train": "alpaca_data_cleaned.json"}),
    "databricks/databricks-dolly-15k": (_dolly, {"train": "databricks-dolly-15k.jsonl"}),
    "HuggingFaceH4/no_robots": (
        lambda draw, number: {**_talks(draw, number), "category": "Chat"},
        _in_parquet("data", "train", "test"),
    ),
    "openai/gsm8k": (_gsm8k, _in_parquet("main", "train", "test")),
    "HuggingFaceH4/ultrachat_200k": (_talks, _in_parquet("data", "train_sft", "test_sft")),
    "HuggingFaceH4/ultrafeedback_binarized": (
        _pair,
        _in_parquet("data", "train_prefs", "test_prefs"),
    ),
    "Salesforce/wikitext": (
        _wikitext,
        _in_parquet("wikitext-103-raw-v1", "train", "validation", "test"),
    ),
    "roneneldan/TinyStories": (
        lambda draw, number: {"text": _text(draw, 60)},
        _in_parquet("data", "train", "validation"),
    ),
}
# Those whose card names a configuration.
_CONFIGURATIONS = {"openai/gsm8k": "main", "Salesforce/wikitext": "wikitext-103-raw-v1"}


def _dataset(name: str) -> dict[str, bytes]:
    maker, splits = _TABLES[name]
    files = {}
    for split, path in splits.items():
        draw = random.Random(f"{name} {split}")
        rows = [maker(draw, number) for number in range(160 if "train" in split else 20)]
        if path.endswith("parquet"):
            files[path] = _parquet(rows)
        elif path.endswith("jsonl"):
            files[path] = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        else:
            files[path] = json.dumps(rows).encode()
    listed = "".join(f"  - {{split: {split}, path: {path}}}\n" for split, path in splits.items())
    configuration = _CONFIGURATIONS.get(name, "default")
    card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n{listed}---\n"
    return {**files, "README.md": card.encode()}


def _named(config: Mapping[str, Any], section: str) -> Iterator[tuple[str, str]]:
    """Repository and commit of each entry of a section that is on the Hub."""
    for entry in (config.get(section) or {}).values():
        if entry and entry["source"] == "hub":
            yield entry["repo_id"], entry["revision"]


def add_what_is_named(hub: Hub, config: Mapping[str, Any], folder: Path) -> None:
    """Put what a config names into a hub, at the commits that it names."""
    for name, commit in _named(config, "models"):
        model = folder / name
        if not model.exists():
            _MODELS[name](model)
        files = {file.name: file.read_bytes() for file in model.iterdir()}
        hub.repositories["models", name] = Repository(files, commit)
    for name, commit in _named(config, "datasets"):
        hub.repositories["datasets", name] = Repository(_dataset(name), commit)
