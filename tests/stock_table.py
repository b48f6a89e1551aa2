"""Twelve chat templates that models have, eight conversations, and what is trained of each.

The expected texts are of the rows and of each template's page.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversations import CALL, TOOLS
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, PreTrainedTokenizerFast
from turn_templates import GEMMA3, MISTRAL

from moray.corpus.dataset import Document
from moray.corpus.remarks import Remarks
from moray.tasks.language.conversation import conversation

FOLDER = Path(__file__).parent / "stock_templates"
THOUGHT = "<think>\none and one\n</think>\n\n2"
TODAY = {"%d %B %Y": "26 Jul 2024", "%Y-%m-%d": "2024-07-26"}

Row = dict[str, Any]


def said(*texts: str) -> list[Row]:
    """Turns of the user and the assistant."""
    roles = ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


ASKED, FIELD = said("Two?"), {"reasoning_content": "one and one"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
NOTHING = {"tool_calls": None, "function_call": None, "reasoning_content": None}
ROWS: dict[str, list[Row]] = {
    "one turn": said("Two?", "2"),
    "several turns": said("Two?", "2", "Three?", "3"),
    "system": [{"role": "system", "content": "Be brief."}, *said("Two?", "2")],
    "reasoning": said("One?", "1", "Two?", THOUGHT),
    "reasoning field": [*ASKED, {"role": "assistant", "content": "2", **FIELD}],
    "tools": [
        *said("Weather?"),
        CALLING,
        {"role": "tool", "content": "12"},
        {"role": "assistant", "content": "Mild."},
    ],
    "nulls": [
        {"role": "system", "content": None},
        {"role": "system", "content": []},
        {"role": "user", "content": [{"type": "text", "text": "Two?"}]},
        {"role": "assistant", "content": "2", **NOTHING},
    ],
    "white space": said("Two?", "\n  2\n"),
}
# As `apply_chat_template` takes them.
PLAIN = ROWS | {"nulls": said("Two?", "2")}
JSON_CALL = '{"name": "weather", "arguments": {"city": "東京"}}'
TAGGED_CALL = f"<tool_call>\n{JSON_CALL}\n</tool_call>"
FAILS, LEFT_OUT = "the chat template fails", "the chat template leaves out the {}"
NO_FIELD, NO_CALLS = LEFT_OUT.format("reasoning of"), LEFT_OUT.format("tool calls of")


@dataclass(frozen=True)
class Expected:
    """A template's tokens and what is trained of `ROWS`.

    Attributes:
        before: what the model has to write before each answer.
        earlier: the stop token of answers that aren't the last, if it is another one.
        texts: of rows of which something else than the answers and stop tokens is trained; the
            beginning of the error, if the row is refused.
        remarks: what is named besides, by the row.
        same: what is named of all rows that aren't in `remarks`.
        more_stops: stop tokens of the model's generation config.
    """

    template: str
    specials: str
    stop: str
    before: str = ""
    behind: str = ""
    earlier: str = ""
    strip: Callable[[str], str] = str
    texts: dict[str, list[str] | str] | None = None
    remarks: dict[str, list[str]] | None = None
    same: tuple[str, ...] = ()
    more_stops: tuple[str, ...] = ()
    greedy: bool = False


def stock(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text()


CHATML, SPACE = "<|im_start|> <|im_end|>", ["white space of 1 of 1 answers is changed"]
EMPTY = "<think>\n\n</think>\n\n"
PUTS = "the chat template puts {!r} before {} answers, not trained"
LACK = "in generation, prompts end in '<think>\\n', which {} answers lack here"
EARLIER = (
    "1 of 2 answers are trained in another form than generation has, as the chat template renders "
    "earlier turns differently from the last"
)
SHARED = "the first token of 1 of 1 answers begins in the text before it"
OSS = "<|channel|>final<|message|>"
OSS_TRAINED = f"the chat template puts {OSS!r} before {{}} answers, trained with them"
# With a wide vertical line.
R1 = "<|User|> <|Assistant|> <|end▁of▁sentence|>".replace("|", "\uff5c")
TEMPLATES = {
    "Llama 2": Expected(
        stock("llama2"), "", "</s>", before=" ", behind=" ", strip=str.strip,
        texts={"reasoning field": NO_FIELD, "tools": FAILS}, remarks={"white space": SPACE},
    ),
    "Llama 3.1": Expected(
        stock("llama3_1"), "<|start_header_id|> <|end_header_id|> <|eot_id|>", "<|eot_id|>",
        strip=str.strip,
        texts={
            "reasoning field": NO_FIELD,
            "tools": [JSON_CALL.replace("arguments", "parameters") + "<|eot_id|>",
                      "Mild.<|eot_id|>"],
        },
        remarks={"white space": SPACE},
    ),
    "Mistral": Expected(
        MISTRAL, "[INST] [/INST] [TOOL_CALLS]", "</s>",
        texts={
            "reasoning field": NO_FIELD,
            "tools": [f"[TOOL_CALLS] [{JSON_CALL}]</s>", " Mild.</s>"],
        },
        before=" ",
        remarks={"system": ["the chat template leaves out messages of 1 conversations"]},
    ),
    "Qwen2.5": Expected(
        stock("qwen2_5"), CHATML, "<|im_end|>",
        texts={
            "reasoning field": NO_FIELD,
            "tools": [f"{TAGGED_CALL}<|im_end|>", "Mild.<|im_end|>"],
            # The line break of the header is of the same token.
            "white space": ["\n\n  2\n<|im_end|>"],
        },
        remarks={"white space": [SHARED]},
    ),
    "Qwen3": Expected(
        stock("qwen3"), CHATML, "<|im_end|>", strip=lambda text: text.lstrip("\n"),
        texts={
            "reasoning field": [f"{THOUGHT}<|im_end|>"],
            "tools": [f"{TAGGED_CALL}<|im_end|>", "Mild.<|im_end|>"],
        },
        remarks={
            "several turns": [EARLIER, PUTS.format(EMPTY, "1 of 2")],
            "tools": [EARLIER, PUTS.format(EMPTY, "1 of 2")],
            "reasoning": [EARLIER], "reasoning field": [],
            "white space": [PUTS.format(EMPTY, "1 of 1"), *SPACE],
        },
        same=(PUTS.format(EMPTY, "1 of 1"),),
    ),
    "Qwen3.5": Expected(
        stock("qwen3_5"), CHATML, "<|im_end|>", strip=str.strip,
        texts={
            "reasoning": ["1<|im_end|>", "one and one\n</think>\n\n2<|im_end|>"],
            "reasoning field": ["one and one\n</think>\n\n2<|im_end|>"],
            "tools": [
                "<tool_call>\n<function=weather>\n<parameter=city>\n東京\n</parameter>\n"
                "</function>\n</tool_call><|im_end|>",
                "Mild.<|im_end|>",
            ],
        },
        remarks={
            "several turns": [
                EARLIER, LACK.format("1 of 2"), PUTS.format("\n</think>\n\n", "1 of 2")
            ],
            "tools": [PUTS.format("\n</think>\n\n", "2 of 2")],
            "reasoning": [EARLIER, LACK.format("1 of 2")], "reasoning field": [],
            "white space": [PUTS.format("\n</think>\n\n", "1 of 1"), *SPACE],
        },
        same=(PUTS.format("\n</think>\n\n", "1 of 1"),),
    ),
    "Gemma 3": Expected(
        GEMMA3, "<start_of_turn> <end_of_turn>", "<end_of_turn>", strip=str.strip,
        texts={"reasoning field": NO_FIELD, "tools": FAILS}, remarks={"white space": SPACE},
    ),
    "Phi-3": Expected(
        stock("phi3"), "<|system|> <|user|> <|assistant|> <|end|>", "<|end|>", strip=str.lstrip,
        texts={"reasoning field": NO_FIELD, "tools": NO_CALLS}, remarks={"white space": SPACE},
        greedy=True,
    ),
    "Phi-4": Expected(
        stock("phi4"), "<|im_start|> <|im_sep|> <|im_end|>", "<|im_end|>",
        texts={"reasoning field": NO_FIELD, "tools": NO_CALLS},
    ),
    "DeepSeek-R1-Distill": Expected(
        stock("deepseek_r1_distill"), R1, R1.split()[-1],
        texts={
            "reasoning": "the chat template leaves out '<think>\\none and one\\n</think>' of "
            "message 4, the last that is trained",
            "reasoning field": NO_FIELD,
            "tools": NO_CALLS,
        },
        remarks={"several turns": [LACK.format("2 of 2")]},
        same=(LACK.format("1 of 1"),),
    ),
    "gpt-oss": Expected(
        stock("gpt_oss"),
        "<|start|> <|message|> <|channel|> <|end|> <|call|> <|return|>", "<|return|>",
        before=OSS, earlier="<|end|>", more_stops=("<|call|>",),
        texts={
            "reasoning field": [
                "<|channel|>analysis<|message|>one and one<|end|><|start|>assistant"
                f"{OSS}2<|return|>"
            ],
            "tools": [
                " to=functions.weather<|channel|>commentary json<|message|>"
                '{"city": "東京"}<|call|>',
                f"{OSS}Mild.<|return|>",
            ],
        },
        remarks={
            "several turns": [EARLIER, OSS_TRAINED.format("2 of 2")],
            "reasoning": [EARLIER, OSS_TRAINED.format("2 of 2")],
            "tools": [OSS_TRAINED.format("1 of 2")],
            "reasoning field": [],
        },
        same=(OSS_TRAINED.format("1 of 1"),),
    ),
    "SmolLM3": Expected(
        stock("smollm3"), CHATML, "<|im_end|>", strip=lambda text: text.lstrip("\n"),
        texts={"reasoning field": NO_FIELD, "tools": NO_CALLS}, remarks={"white space": SPACE},
    ),
}  # fmt: skip


# How Llama 3 and Qwen split text; line breaks are a token with the white space in front of them.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tokenizer_of(expected: Expected) -> PreTrainedTokenizerFast:
    """A tokenizer with a template's special tokens, and tokens of several characters."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([f"{THOUGHT}\n\n\n2\n{JSON_CALL} Two? Three?"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    words = [*expected.specials.split(), "<s>", "</s>"]
    added = [
        AddedToken(word, special=True, normalized=False, rstrip=expected.greedy) for word in words
    ]
    # As Qwen has them: tokens that aren't special.
    more = [AddedToken(word, normalized=False) for word in ("<think>", "</think>")]
    tokenizer.add_tokens([*added, *more])
    tokenizer.bos_token, tokenizer.eos_token = "<s>", expected.stop
    return tokenizer


def trained_texts(name: str, row: str, are_last: bool = False) -> list[str] | str:
    """What is expected to be trained, an answer at a time; each of them may be a last one."""
    one = TEMPLATES[name]
    if one.texts and row in one.texts:
        return one.texts[row]
    answers = [turn["content"] for turn in ROWS[row] if turn["role"] == "assistant"]
    earlier = one.stop if are_last else one.earlier or one.stop
    stops = [earlier] * (len(answers) - 1) + [one.stop]
    return [
        one.before + one.strip(answer) + one.behind + stop
        for answer, stop in zip(answers, stops, strict=True)
    ]


def plain_messages(name: str, row: str) -> list[Row]:
    """The messages of a row, as `apply_chat_template` takes them with a template."""
    rows = [dict(message) for message in PLAIN[row]]
    if name == "gpt-oss":
        rows = [
            {{"reasoning_content": "thinking"}.get(key, key): value for key, value in one.items()}
            for one in rows
        ]
        rows = [one | {"content": one["content"] or ""} for one in rows]
    return rows


def by_itself(
    tokenizer: PreTrainedTokenizerFast, name: str, row: str, end: int | None = None, **options: Any
) -> str:
    """The text that the template alone makes of a row up to a message, on a fixed day."""
    template = TEMPLATES[name].template
    for form, day in TODAY.items():
        template = re.sub(rf"strftime_now\((['\"]){re.escape(form)}\1\)", repr(day), template)
    tools = TOOLS if row == "tools" else None
    text = tokenizer.apply_chat_template(
        plain_messages(name, row)[:end], tools, chat_template=template, tokenize=False, **options
    )
    assert isinstance(text, str)
    return text


def document_of(row: str) -> Document:
    made = conversation(ROWS[row], TOOLS if row == "tools" else None, None, None, Remarks())
    return Document(messages=made["messages"] or "", tools=made["tools"])
