"""Rows of pairs have the tokens of the tokenizer's own calls, as TRL has them."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from classified import DECODERS, ENCODERS, opinions, prepare
from resumed import check_resumption, in_small_groups
from rewarded import CFG, TEMPLATE, prepare_pairs, talks, text_pairs
from transformers import AutoTokenizer

from moray.corpus.dataset import halves, messages_of, read_documents
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.rows.store import Rows, StoredRows
from moray.tasks.reward.tokenize_labelled import PairEncoder, tokenize_labelled


def documents_of(folder: Path, split: str = "train") -> list[Any]:
    return list(chain.from_iterable(read_documents(folder / f"dataset/{split}.parquet")))


def tokens_of(rows: Rows) -> list[list[list[int]]]:
    return [
        [row["tokens"][place, : row["length"][place]].tolist() for place in (0, 1)] for row in rows
    ]


@pytest.mark.parametrize("kind", ["BERT", "Llama"])
def test_a_text_is_prompt_and_answer_with_the_eos_token(kind: str, tmp_path: Path) -> None:
    folder = prepare_pairs(tmp_path, text_pairs(60), (ENCODERS | DECODERS)[kind](), block_size=20)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    for split in ("train", "validation", "test"):
        stored, documents = StoredRows(folder / "labelled", split).rows, documents_of(folder, split)
        # The tokenizer ends texts with it by itself.
        expected = [
            [tokenizer(one["prompt"] + one[key])["input_ids"] for key in ("chosen", "rejected")]
            for one in documents
        ]
        assert tokens_of(stored) == expected
        assert expected[0][0][-1] == tokenizer.eos_token_id
        assert stored["margin"].tolist() == [one["margin"] or 0 for one in documents]
        assert stored["document"].tolist() == [*range(len(documents))]
        padding = [row["tokens"][0, row["length"][0] :] for row in stored]
        assert {*chain(*padding)} == {tokenizer.pad_token_id}


def test_a_tokenizer_that_adds_no_eos_token_gets_one(tmp_path: Path) -> None:
    folder = prepare_pairs(tmp_path, text_pairs(60), DECODERS["Llama"]())
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.backend_tokenizer.post_processor = None
    encoder = PairEncoder(tokenizer, CFG)
    document = documents_of(folder)[0]
    ((chosen, _),) = encoder.encode([document], "datasets.d")
    expected = tokenizer(document["prompt"] + document["chosen"] + tokenizer.eos_token)["input_ids"]
    assert chosen == expected
    assert expected.count(tokenizer.eos_token_id) == 1


def test_conversations_are_rendered_whole_by_the_chat_template(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "chat_template": f"{{{{ mark }}}}{TEMPLATE}",
        "template_variables": {"mark": "it"},
        "block_size": 20,
    }
    folder = prepare_pairs(tmp_path, talks(60), DECODERS["Llama"](), **keys)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    expected = [
        [
            tokenizer.apply_chat_template(
                messages_of(half), chat_template=keys["chat_template"], mark="it", return_dict=False
            )
            for half in halves(one)
        ]
        for one in documents_of(folder)
    ]
    assert tokens_of(StoredRows(folder / "labelled", "train").rows) == expected


def test_a_conversation_that_a_template_fails_on_is_quoted(tmp_path: Path) -> None:
    template = "{{ raise_exception('no') }}"
    with pytest.raises(
        UserError, match=r"^datasets\.dataset: the chat template fails .*no.*begins"
    ):
        prepare_pairs(tmp_path, talks(60), DECODERS["Llama"](), chat_template=template)


def test_conversations_without_a_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data\.chat_template: is not set"):
        prepare_pairs(tmp_path, talks(60), DECODERS["Llama"]())


CLS, SEP = 101, 102


def encoder_of(size: int, **keys: Any) -> PairEncoder:
    class Tokenizer:
        pad_token_id, all_special_ids = 0, (CLS, SEP)

    return PairEncoder(Tokenizer(), CFG | {"block_size": size} | keys)


def test_long_pairs_lose_what_they_share_and_then_their_ends() -> None:
    prompt, chosen, rejected = [*range(1, 9)], [20, 21, 22], [30]
    pair = [CLS, *prompt, *chosen, SEP], [CLS, *prompt, *rejected, SEP]
    assert encoder_of(13).cut(pair) == pair
    # Two tokens too long.
    cut = encoder_of(11).cut(pair)
    assert cut == ([CLS, *prompt[2:], *chosen, SEP], [CLS, *prompt[2:], *rejected, SEP])
    # Of the prompt, half of a row stays.
    cut = encoder_of(6).cut(pair)
    assert cut == ([CLS, 6, 7, 8, 20, SEP], [CLS, 6, 7, 8, 30, SEP])
    plain = pair[0][1:-1], pair[1][1:-1]
    assert encoder_of(6).cut(plain) == ([6, 7, 8, 20, 21, 22], [6, 7, 8, 30])


def test_pairs_that_are_too_long_or_equal_are_counted(tmp_path: Path, capsys: Any) -> None:
    rows = text_pairs(60)
    # Characters that the tokenizer doesn't know are one token.
    rows.append({"prompt": "it ", "chosen": "x", "rejected": "y"})
    longest = max(sum(len(row[key].split()) for key in ("prompt", "chosen")) for row in rows)
    lost: dict[str, dict[str, int]] = {}
    for long_documents in ("split", "drop"):
        folder = prepare_pairs(
            tmp_path / long_documents,
            rows,
            DECODERS["Llama"](),
            block_size=longest,
            long_documents=long_documents,
        )
        splits = read_manifest(folder / "labelled")["splits"].values()
        lost[long_documents] = {
            key: sum(one[key] for one in splits)
            for key in ("rows", "cut_documents", "dropped_documents", "equal_documents")
        }
        groups = StoredRows(folder / "labelled", "test").rows["document"]
        size = (folder / "labelled/test.groups").stat().st_size
        assert size == 8 * len(groups)
    cut = lost["split"].pop("cut_documents")
    assert cut > 0
    assert lost["split"] == {"rows": 60, "dropped_documents": 1, "equal_documents": 1}
    assert lost["drop"] == {
        "rows": 60 - cut,
        "cut_documents": 0,
        "dropped_documents": 1 + cut,
        "equal_documents": 1,
    }
    said = capsys.readouterr().err
    assert f"60 pairs, {cut} of them cut to {longest} tokens a text, 1 dropped, the same" in said
    assert (
        f"{60 - cut} pairs, {cut} dropped, longer than {longest} tokens, 1 dropped, the s" in said
    )


def test_a_split_without_pairs_is_refused(tmp_path: Path) -> None:
    problem = r"^datasets\.dataset: the train split has no pairs left; .*raise data\.block_size"
    with pytest.raises(UserError, match=problem):
        prepare_pairs(
            tmp_path, text_pairs(60), DECODERS["Llama"](), block_size=3, long_documents="drop"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"margin": -1}, "got -1 in column margin, expected a number of at least 0"),
        ({"margin": "much"}, "got 'much' in column margin"),
        ({"margin": True}, "got True in column margin"),
        ({"chosen": "a", "rejected": "a"}, "chosen and rejected are equal"),
    ],
)
def test_rows_that_say_nothing_are_refused_with_their_place(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rows = text_pairs(60)
    rows[1] |= change
    with pytest.raises(UserError, match=rf"rows\.jsonl, line 2: {message}"):
        prepare_pairs(tmp_path, rows, DECODERS["Llama"]())


def test_margins_of_tables_of_text_are_read(tmp_path: Path) -> None:
    rows = text_pairs(60)
    margins: list[Callable[[int], Any]] = [str, float, lambda number: "", lambda number: None]
    for number, row in enumerate(rows):
        row["margin"] = margins[number % 4](number)
    folder = prepare_pairs(tmp_path, rows, DECODERS["Llama"]())
    found = {
        margin for split in ("train", "test", "validation") for margin in margins_of(folder, split)
    }
    assert found == {0.0, *(float(number) for number in range(60) if number % 4 < 2)}


def margins_of(folder: Path, split: str) -> list[float]:
    margins: list[float] = StoredRows(folder / "labelled", split).rows["margin"].tolist()
    return margins


def test_a_model_of_classes_is_refused(tmp_path: Path) -> None:
    folder = prepare_pairs(tmp_path / "a", text_pairs(60), ENCODERS["BERT"]())
    other = prepare(tmp_path / "b", opinions(60), ENCODERS["BERT"]())
    with pytest.raises(UserError, match=r"^model: got a model for single_label_classification"):
        tokenize_labelled(folder / "dataset", other / "model", folder / "other", CFG)


def test_a_store_is_the_same_if_the_stage_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare_pairs(tmp_path, text_pairs(60), DECODERS["Llama"]())
    dataset = in_small_groups(folder / "dataset", tmp_path / "groups", 12)
    cfg = {**CFG, "block_size": 12, "long_documents": "drop"}
    check_resumption(
        lambda store: tokenize_labelled(dataset, folder / "model", store, cfg), tmp_path, capsys
    )
