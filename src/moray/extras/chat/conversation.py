"""Talk to models on the terminal, with the tokens that they were trained with."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.generation import BaseStreamer

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data, Generate
from moray.config.tasks import MODALITIES, TASKS
from moray.corpus.dataset import RowError
from moray.errors import UserError
from moray.evaluate.worker import dtype_of
from moray.model.load import load_config, load_model, longest_sequence
from moray.provenance.lineage import LINEAGE
from moray.provenance.manifest import MANIFEST, read_json, sha256_file
from moray.results import find_runs
from moray.tasks.language.encode import Encoder, make_encoder
from moray.tasks.language.generation import Sampling, stream
from moray.tasks.language.tokenizer import decode_after, load_tokenizer

_RUNS = Path("results/runs")
# Tokens of the prompt that those of the answer are decoded behind.
_CONTEXT = 16


@dataclass
class Chat:
    """A conversation with one model.

    A model without a chat template continues each text by itself.

    Attributes:
        encoder: renders and tokenises as in training.
        length: maximum number of tokens, answer included.
        system: the system prompt; None without one.
    """

    model: PreTrainedModel
    encoder: Encoder
    sampling: Sampling
    length: int
    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    _answers: int = 0

    def tokens(self, message: str) -> list[int]:
        """The tokens of the conversation with the user's next message.

        The oldest messages are left out if there is no room for all and an answer.

        Raises:
            UserError: if there isn't even room for the message, or the chat template refuses it;
                the conversation is then as it was.
        """
        room = self.length - self.sampling.max_new_tokens
        messages: list[dict[str, Any]] = []
        if not is_chat(self.encoder.tokenizer):
            tokens = self.encoder.prompt_tokens(message)
        else:
            messages = [*self.messages, {"role": "user", "content": message}]
            tokens = self._render(messages)
            while len(tokens) > room and len(messages) > 1:
                # A question with its answer, so that roles go on alternating.
                del messages[:2]
                tokens = self._render(messages)
        if len(tokens) > room:
            raise UserError(
                "your message",
                f"got {len(tokens)} tokens, expected at most {room}, which leaves "
                f"{self.sampling.max_new_tokens} for an answer",
                "shorten it",
            )
        self.messages = messages
        return tokens

    def answer(self, message: str) -> None:
        """Print the model's answer as it is written; Ctrl-C ends it early."""
        tokens = self.tokens(message)
        printer = _Printer(self.encoder.tokenizer)
        try:
            stream(self.model, tokens, self.sampling, self._answers, printer)
        except KeyboardInterrupt:
            printer.end()
        if printer.num_tokens == self.sampling.max_new_tokens and not printer.has_ended(
            self.sampling.stops
        ):
            print(
                f"(cut after {printer.num_tokens} tokens; start with --max-new-tokens for more)",
                file=sys.stderr,
            )
        self._answers += 1
        if self.messages:
            self.messages.append({"role": "assistant", "content": printer.text})

    def _render(self, messages: list[dict[str, Any]]) -> list[int]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        try:
            whole = self.encoder.template().before_answer([*system, *messages])
            return self.encoder.tokens_of(whole)
        except RowError as error:
            raise UserError(
                "your message", error.problem, "say something else, or fix data.chat_template"
            ) from error


class _Printer(BaseStreamer):
    """Prints tokens as soon as they are whole characters, and keeps their text.

    Decoded behind the end of the prompt: alone, a line's first token may lose a space.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._before: list[int] | None = None
        self._tokens: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Number of tokens behind the prompt."""
        return len(self._tokens)

    def has_ended(self, stops: Sequence[int]) -> bool:
        """Whether the last token is a stop token."""
        return self._tokens[-1] in stops

    def put(self, value: Tensor) -> None:
        """Take the prompt, then the tokens."""
        tokens = value.flatten().tolist()
        if self._before is None:
            self._before = tokens[-_CONTEXT:]
            return
        self._tokens += tokens
        if not (text := self._decode()).endswith("\N{REPLACEMENT CHARACTER}"):
            self._print(text)

    def end(self) -> None:
        """Print what is left, and end the line."""
        self._print(self._decode())
        print(flush=True)

    def _decode(self) -> str:
        return decode_after(
            self._tokenizer, self._before or [], self._tokens, skip_special_tokens=True
        )

    def _print(self, text: str) -> None:
        print(text[len(self.text) :], end="", flush=True)
        self.text = text


def is_chat(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether a model has a chat template, its own or its run's."""
    return bool(tokenizer.chat_template)


def open_chats(
    run: str,
    base: bool,
    tuned: bool,
    system: str | None = None,
    settings: Mapping[str, Any] = {},
) -> dict[str, Chat]:
    """Load the models of a run; returns a conversation with each, by name.

    Args:
        base, tuned: whether to load the model that it started from, and its own.
        system: the system prompt.
        settings: of `generate`, other than those of the run's samples.

    Raises:
        UserError: if there is no such run, it isn't trained yet, it isn't of text, or has no chat
            template for a system prompt.
    """
    folder = _RUNS / run / "model"
    if not (folder / "manifest.json").is_file():
        trained = sorted(path.parts[-3] for path in _RUNS.glob("*/model/manifest.json"))
        remedy = "make it by snakemake finetune"
        if trained:
            remedy += f", or name one of {', '.join(trained)}"
        raise UserError(str(folder), "there is no model", remedy)
    (found,) = find_runs(_RUNS.parent, _RUNS.parent / "state", [run])
    modality = TASKS[found.task or "language"].modality
    if modality != "text":
        target = "generate" if MODALITIES[modality].has_samples else "eval"
        raise UserError(str(folder), f"this model is for {modality}", f"see snakemake {target}")
    models = {f"base of {run}": (base, _start(folder)), run: (tuned, folder)}
    # The base has no chat template if the run brought it.
    encoder = _encoder(folder)
    if system is not None and not is_chat(encoder.tokenizer):
        raise UserError(
            "--system", f"{folder} has no chat template, which would render it", "leave it out"
        )
    sampling = replace(_sampling(folder, encoder), **settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype_of("auto", device)
    return {
        name: Chat(
            load_model(path, dtype, device),
            encoder,
            sampling,
            longest_sequence(load_config(path)),
            system,
        )
        for name, (is_asked_for, path) in models.items()
        if is_asked_for
    }


def _start(folder: Path) -> Path:
    """The start of a run's model; a line says so if the run has been trained again since."""
    record = folder.with_name("train.json")
    lineage = folder / LINEAGE
    # Before a run is trained again, its train.json is removed.
    if lineage.is_file():
        content = read_json(lineage, ("training", "inputs"))
        training, digest = content["training"], content["inputs"].get(str(record))
        if not record.is_file() or digest not in (None, sha256_file(record)):
            print(f"this model is of an earlier training than {record}", file=sys.stderr)
    else:
        training = read_json(record, ("inputs",))
    return Path(training["inputs"]["start"])


def _encoder(folder: Path) -> Encoder:
    text = "messages" if is_chat(load_tokenizer(folder)) else "prompt-completion"
    # The value of the training; the tokenizer doesn't have it, nor do models of earlier versions.
    bos = read_json(folder / MANIFEST).get("bos", "auto")
    return make_encoder(folder, {"format": text, **result_keys(Data()), "bos": bos})


def _sampling(folder: Path, encoder: Encoder) -> Sampling:
    """The settings that the run's samples were made with; the defaults if there are none yet."""
    file = folder.parent / "generation.json"
    used = Generate().model_dump()
    if file.is_file():
        # It also has results, such as `metrics`, which are ignored.
        used |= read_json(file)
    return Sampling(
        **{key: used[key] for key in ("max_new_tokens", "temperature", "top_p", "seed")},
        stops=tuple(encoder.stops),
        padding=encoder.tokenizer.eos_token_id,
    )


def talk(chats: dict[str, Chat]) -> None:
    """Read what the user says until the end of the input (Ctrl-D); print each model's answer."""
    print(f"{' and '.join(chats)}: end a line with \\ to go on in the next one, Ctrl-D leaves")
    while True:
        try:
            message = input("> ")
            while message.endswith("\\"):
                message = f"{message[:-1]}\n{input('… ')}"
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if not message.strip():
            continue
        if not _is_text(message):
            print("error: your message: isn't text; type it again", file=sys.stderr)
            continue
        for name, chat in chats.items():
            if len(chats) > 1:
                print(f"{name}: ", end="")
            try:
                chat.answer(message)
            except UserError as error:
                print(f"error: {error}", file=sys.stderr)


def _is_text(line: str) -> bool:
    """Whether a line has no bytes that Python could only escape."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True
