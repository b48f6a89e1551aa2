"""What `config/gpt2-rust.yaml` names, made small, in a hub of one's own."""

import json
import random
from pathlib import Path

from hub_server import Hub, Repository
from tokenizers import ByteLevelBPETokenizer
from transformers import CodeGenConfig, CodeGenForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers import PreTrainedTokenizerFast as Tokenizer

TOKEN = "hf_a-canary-for-the-hub"
DATASET_COMMIT = "4a6938ce94446f324c6629e7de00ac591710044b"
GPT2_COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
CODEGEN_COMMIT = "c0de" * 10

_WORDS = ["fn", "let", "mut", "impl", "struct", "match", "self", "return", "Vec", "Some", "None"]


def rust_files(count: int) -> list[str]:
    """Small files that look like Rust."""
    draw = random.Random(7)
    return [
        "\n".join(
            f"fn f{number}_{line}() -> i32 {{ let x = {draw.randint(0, 99)}; "
            f"{' '.join(draw.choices(_WORDS, k=6))} }}"
            for line in range(draw.randint(2, 9))
        )
        for number in range(count)
    ]


def rust_hub(folder: Path) -> Hub:
    """A hub with the gated dataset, a GPT-2 and a CodeGen at the pinned commits."""
    texts = rust_files(100)
    # `train[:1%]` of them are those.
    rows = [{"content": text, "ext": "rs", "avg_line_length": 30.0} for text in texts]
    fillers = [{"content": "fn main() {}", "ext": "rs", "avg_line_length": 12.0}] * 9900
    data = "".join(f"{json.dumps(row)}\n" for row in rows + fillers).encode()
    card = b"---\nlicense: other\n---\nAccess needs an agreement.\n"
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(texts, vocab_size=500, special_tokens=["<|endoftext|>"])
    end = "<|endoftext|>"
    tokenizer = Tokenizer(
        tokenizer_object=learned._tokenizer, bos_token=end, eos_token=end, unk_token=end
    )
    sizes = {"vocab_size": len(tokenizer), "n_positions": 512, "n_embd": 32}
    ends = {"n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, **ends))
    codegen = CodeGenForCausalLM(
        CodeGenConfig(**sizes, **{**ends, "n_head": 4}, n_ctx=512, rotary_dim=4)
    )
    for name, model in (("gpt2", gpt2), ("codegen", codegen)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return Hub(
        {
            ("datasets", "bigcode/the-stack-smol"): Repository(
                {"README.md": card, "data/rust/data.json": data, "data/c/data.json": b"{}\n"},
                DATASET_COMMIT,
                gated=True,
            ),
            ("models", "openai-community/gpt2"): _model(folder / "gpt2", GPT2_COMMIT),
            ("models", "Salesforce/codegen-350M-mono"): _model(folder / "codegen", CODEGEN_COMMIT),
        },
        tokens={TOKEN: "write"},
    )


def _model(folder: Path, commit: str) -> Repository:
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    # What a repository of the Hub has besides, and nobody needs.
    return Repository({**files, "pytorch_model.bin": b"a pickle", "README.md": b""}, commit)
