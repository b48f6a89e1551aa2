"""The tokenizer of a folder, as training takes it."""

import json
import shutil
from pathlib import Path

import pytest
from metaspace import STOP, metaspace
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.tasks.language.encode import Encoder
from moray.tasks.language.tokenizer import (
    begin_with_bos,
    decode_after,
    load_tokenizer,
    opening,
    stop_token_ids,
)


@pytest.fixture
def folder(tmp_path: Path, model_folder: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


def change(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_tokenizer_that_truncates_and_pads_does_neither_here(folder: Path) -> None:
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding()
    backend.save(str(folder / "tokenizer.json"))
    rows = [Document(text="value " * 20), Document(text="x")]
    (long, short), *_ = Encoder(load_tokenizer(folder), 4096).encode(rows, 0, count_bytes=True)
    assert load_tokenizer(folder).decode(long.tokens[1:-1]) == rows[0]["text"]
    assert len(short.tokens) == 3


def test_a_tokenizer_without_a_stop_token_is_refused(folder: Path) -> None:
    change(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(UserError, match="the tokenizer has no eos_token"):
        load_tokenizer(folder)


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_tokenizer_that_cannot_be_read_costs_one_line(folder: Path, content: str | None) -> None:
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(UserError) as caught:
        load_tokenizer(folder)
    assert str(caught.value).startswith(f"{folder}: can't load the tokenizer")


def test_a_config_that_cannot_be_read_is_reported_as_what_it_is(folder: Path) -> None:
    """transformers reads it before the tokenizer."""
    change(folder / "config.json", vocab_size="320")
    with pytest.raises(UserError) as caught:
        load_tokenizer(folder)
    assert str(caught.value) == (
        f"{folder}: can't load the tokenizer (Validation error for field 'vocab_size': TypeError: "
        "Field 'vocab_size' expected int, got str (value: '320')); check its tokenizer.json and "
        "config.json"
    )


def test_code_that_comes_with_a_tokenizer_is_never_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (folder / "custom.py").write_text(
        f"import pathlib\npathlib.Path({str(folder / 'ran')!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast as Custom\n"
    )
    change(
        folder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": [None, "custom.Custom"]},
        tokenizer_class="Custom",
    )
    change(folder / "config.json", model_type="custom", auto_map={"AutoConfig": "custom.Custom"})
    with pytest.raises(UserError):
        load_tokenizer(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("configured", "expected"),
    [(5, [0, 5]), ([7, 0, 5], [0, 5, 7]), (0, [0]), ([], [0]), (None, [0])],
)
def test_generation_stops_where_tokenizer_and_model_say(
    folder: Path, configured: object, expected: list[int]
) -> None:
    change(folder / "generation_config.json", eos_token_id=configured)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_id == 0
    assert stop_token_ids(tokenizer, folder) == expected


def test_without_a_generation_config_the_tokenizer_alone_says_where(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert stop_token_ids(load_tokenizer(folder), folder) == [0]


def test_documents_begin_with_what_the_tokenizer_adds_or_the_config_says(folder: Path) -> None:
    """SmolLM2-Instruct's BOS token opens a turn, and its tokenizer doesn't add it to a text."""
    change(folder / "tokenizer_config.json", bos_token="def")
    bare = load_tokenizer(folder)
    token = bare.convert_tokens_to_ids("def")
    assert (bare.bos_token_id, bare.eos_token_id) == (token, 0)
    assert opening(bare) == opening(bare, bos=False) == []
    assert opening(bare, bos=True) == [token]
    adding = TemplateProcessing(single="def $A", special_tokens=[("def", token)])
    bare.backend_tokenizer.post_processor = adding
    assert opening(bare) == [token]
    assert opening(bare, bos=False) == []


@pytest.mark.parametrize("before", ["def $A", "$A", "def $A return", "$A return"])
@pytest.mark.parametrize("bos", [False, True])
def test_a_call_begins_with_the_bos_token_or_not_and_ends_as_before(
    folder: Path, tmp_path: Path, before: str, bos: bool
) -> None:
    change(folder / "tokenizer_config.json", bos_token="def", eos_token="return")
    tokenizer = load_tokenizer(folder)
    known = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("def", "return")]
    adding = TemplateProcessing(single=before, special_tokens=known)
    tokenizer.backend_tokenizer.post_processor = adding
    begin_with_bos(tokenizer, bos)
    tokenizer.save_pretrained(tmp_path / "saved")
    alone = tokenizer("x", add_special_tokens=False)["input_ids"]
    ends = [tokenizer.eos_token_id] if before.endswith("return") else []
    expected = [tokenizer.bos_token_id] * bos + alone + ends
    assert tokenizer("x")["input_ids"] == expected
    assert load_tokenizer(tmp_path / "saved")("x")["input_ids"] == expected


def test_documents_begin_with_the_first_token_if_there_is_one(
    folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert opening(tokenizer) == [0]
    change(folder / "tokenizer_config.json", bos_token=None)
    without = load_tokenizer(folder)
    assert opening(without) == []
    with pytest.raises(UserError, match=r"^data\.bos: the tokenizer has no bos_token"):
        opening(without, bos=True)


@pytest.mark.parametrize("scheme", ["always", "first"])
@pytest.mark.parametrize("unigram", [False, True])
def test_a_continuation_keeps_the_spaces_that_it_begins_with(
    unigram: bool, scheme: str, texts: list[str]
) -> None:
    backend = metaspace(unigram, scheme, texts)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token=STOP, unk_token="<unk>"
    )
    encoder = Encoder(tokenizer, 4096)
    prompt, completion = "def f(x):\n", "    y = x\n    return 'é🐍'\n"
    before = encoder.prompt_tokens(prompt)
    both = encoder.prompt_tokens(prompt + completion)
    assert both[: len(before)] == before
    new = both[len(before) :]
    assert decode_after(tokenizer, before, new) == completion
