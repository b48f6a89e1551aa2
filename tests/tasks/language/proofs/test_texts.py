"""What tokenizers lose of texts."""

import json
from pathlib import Path

import pytest
from conversations import conversation
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from moray.corpus.dataset import Document
from moray.tasks.language.proofs.texts import compare_texts

TEXT = "Le\tchat  Noir\nété " + "." * 60
ROWS = [
    Document(text=TEXT),
    Document(prompt="Le\tchat  Noir", completion="\nété " + "." * 60),
    conversation(("user", "?"), ("assistant", TEXT)),
]


@pytest.mark.parametrize("row", ROWS, ids=["text", "completion", "messages"])
@pytest.mark.parametrize(
    ("normalizer", "here", "there"),
    [
        (None, "equal", "equal"),
        # A space in front of the text is the tokenizer's.
        (normalizers.Prepend(" "), "equal", "equal"),
        (normalizers.Lowercase(), "Le\tchat  Noir\n", "le\tchat  noir\n"),
        (normalizers.Replace(Regex(r"\s+"), " "), "Le\tchat  Noir\n", "Le chat Noir é"),
        (normalizers.NFD(), "hat  Noir\nété", "hat  Noir\ne\u0301t"),
    ],
    ids=["nothing", "space", "case", "white space", "composition"],
)
def test_what_a_tokenizer_loses_is_shown_where_it_begins(
    model_folder: Path,
    tmp_path: Path,
    row: Document,
    normalizer: normalizers.Normalizer | None,
    here: str,
    there: str,
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    if normalizer:
        tokenizer.backend_tokenizer.normalizer = normalizer
    tokenizer.save_pretrained(tmp_path)
    tokens, found = compare_texts(tmp_path, [Document(text="a"), row])
    assert (tokens.here, tokens.plain) == (2, 2)
    assert (found.here[: len(here)], found.plain[: len(there)]) == (here, there)
    assert found.holds == (here == "equal")
    assert found.advisory
    counted = "text of documents" if found.holds else "text of 1 document"
    assert found.what == f"{counted}, which their tokens should decode to"
    assert max(len(found.here), len(found.plain)) <= 40


def test_tokens_that_the_class_of_a_tokenizer_makes_otherwise_are_told(
    model_folder: Path, tmp_path: Path
) -> None:
    """As GPT2Tokenizer does in transformers 5 with SmolLM2's file, which splits digits."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    tokenizer.save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    named = json.loads(config.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}
    config.write_text(json.dumps(named))
    rows = [Document(text="no digits"), Document(text=" 1234 1234 and 12")]
    tokens, _ = compare_texts(tmp_path, rows)
    # Unless this version of transformers reads the file.
    split = len(backend.encode(rows[1]["text"]).ids)
    alone = len(AutoTokenizer.from_pretrained(tmp_path)(rows[1]["text"])["input_ids"])
    assert (tokens.here, tokens.plain) == (2, 1 if alone != split else 2)
