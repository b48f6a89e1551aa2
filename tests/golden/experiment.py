"""A small experiment with a run of each task, whose data depend on no library."""

import json
import random
from pathlib import Path
from typing import Any

from benchmark_tasks import write_tasks
from pictures import VIT, image_folder

_WORDS = """
def return self value for in if not None import class lambda yield with as from naïve café Straße
東京 данные 🐍 ∑ ½ → 'quoted' (x, y) a[0] += 1 # note
"""
_TEMPLATE = """
{%- for message in messages %}
    {{- message.role + ': ' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + eos_token }}{% endgeneration %}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}
"""
SHARES = {"test_share": 0.2, "validation_share": 0.1}
LLAMA = {
    "source": "scratch",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
TRAIN = {
    "launcher": "torchrun",
    "max_steps": 6,
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "eval_steps": 3,
    "save_steps": 3,
    "precision": "fp32",
}
EXPERIMENT: dict[str, Any] = {
    "datasets": {
        "texts": {"source": "files", "path": "data/texts.jsonl", **SHARES},
        "answers": {
            "source": "files",
            "path": "data/answers.jsonl",
            "format": "prompt-completion",
            **SHARES,
        },
        "talks": {"source": "files", "path": "data/talks.jsonl", "format": "messages", **SHARES},
        "pairs": {"source": "files", "path": "data/pairs.jsonl", "format": "preference", **SHARES},
        "ratings": {
            "source": "files",
            "path": "data/ratings.jsonl",
            "format": "classification",
            **SHARES,
        },
        # The same pairs, for a reward model.
        "judged": {"source": "files", "path": "data/pairs.jsonl", "format": "reward", **SHARES},
        "opinions": {
            "source": "files",
            "path": "data/opinions.jsonl",
            "format": "unpaired-preference",
            **SHARES,
        },
        "tagged": {
            "source": "files",
            "path": "data/tagged.jsonl",
            "format": "token-classification",
            **SHARES,
        },
        "colours": {"source": "image-folder", "path": "data/colours", **SHARES},
    },
    "models": {
        "tiny": {**LLAMA, "tokenizer": {"train_on": "texts", "vocab_size": 300}},
        "reader": {
            **LLAMA,
            "tokenizer": {"train_on": "ratings", "vocab_size": 300},
            "classes_of": "ratings",
        },
        "judge": {
            **LLAMA,
            "tokenizer": {"train_on": "judged", "vocab_size": 300},
            "classes_of": "judged",
        },
        "tagger": {
            **LLAMA,
            "tokenizer": {"train_on": "texts", "vocab_size": 300},
            "classes_of": "tagged",
        },
        "vit": {"source": "scratch-vision", "classes_of": "colours", **VIT},
    },
    "defaults": {
        "data": {"block_size": 64},
        "train": TRAIN,
        "ray": {"num_workers": 1},
        "evaluate": {"bootstrap_samples": 20},
        "generate": {"num_samples": 4, "max_new_tokens": 8, "prompt_tokens": 8},
    },
    "runs": {
        "texts": {"model": "tiny", "dataset": "texts"},
        "answers": {
            "model": {"run": "texts"},
            "dataset": {"answers": 2, "texts": 1},
            "adapter": {"rank": 4},
            "generate": {"metrics": ["chrf", "exact_match"]},
        },
        "talks": {
            "model": {"run": "texts"},
            "dataset": "talks",
            "data": {"chat_template": _TEMPLATE},
            "train": {"max_steps": 2},
        },
        # From a base, so that a change of all trainings is one of this row too.
        "pairs": {"model": "tiny", "dataset": "pairs"},
        "taught": {
            "model": "tiny",
            "dataset": "answers",
            "distillation": {"teacher": {"run": "texts"}, "temperature": 2, "top_k": 8},
            "train": {"max_steps": 2},
            "generate": {"num_samples": 1},
        },
        "ratings": {"model": "reader", "dataset": "ratings"},
        "judged": {
            "model": "judge",
            "dataset": "judged",
            "reward": {"center_rewards_coefficient": 0.01},
        },
        "opinions": {"model": "tiny", "dataset": "opinions", "train": {"max_steps": 2}},
        "tagged": {"model": "tagger", "dataset": "tagged", "train": {"max_steps": 2}},
        "colours": {
            "model": "vit",
            "dataset": "colours",
            "data": {"augmentation": {"shift": 1, "flip": True}},
        },
    },
}


def write_data(folder: Path) -> None:
    """Write what the datasets are read from, and benchmark tasks."""
    draw = random.Random(0)

    def text(most: int) -> str:
        return "".join(
            word + draw.choice("    \n")
            for word in draw.choices(_WORDS.split(), k=draw.randint(1, most))
        )

    talks = [
        [{"role": role, "content": text(5)} for role in ("user", "assistant") * draw.randint(1, 3)]
        for _ in range(40)
    ]
    rows: dict[str, list[dict[str, Any]]] = {
        "texts": [{"text": text(draw.choice([3, 10, 80]))} for _ in range(60)],
        "answers": [{"prompt": text(8), "completion": text(12)} for _ in range(60)],
        "talks": [{"messages": talk} for talk in talks],
        "pairs": [{"prompt": text(4), "chosen": text(6), "rejected": text(6)} for _ in range(60)],
        "ratings": [
            {"text": text(9), "label": draw.choice(["bad", "fair", "good"])} for _ in range(60)
        ],
    }
    # Drawn last, so that the others stay as they are.
    rows["opinions"] = [
        {"prompt": text(4), "completion": text(6), "label": draw.random() < 0.5} for _ in range(60)
    ]
    rows["tagged"] = [
        {"tokens": words, "tags": [draw.choice(["O", "B-NAME"]) for _ in words]}
        for words in (text(9).split() for _ in range(60))
    ]
    folder.mkdir(parents=True)
    for name, lines in rows.items():
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(content)
    image_folder(folder / "colours", {"red": 15, "green": 15})
    write_tasks(folder / "tasks", documents=6)
