"""The token store of a dataset: how its splits are tokenised and written.

Each task on text has a module of this name, with functions `write_split`, `summary`, `compare` and
`warnings`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from moray.corpus.dataset import (
    Document,
    group_of,
    plain_text,
    read_documents,
    read_group,
    share_of_group,
)
from moray.proofs.comparison import Comparison
from moray.provenance.space import check_space
from moray.rows.journal import Journal
from moray.rows.store import Counts, RowsWriter, write_groups
from moray.stages.store import MakeWindow, OpenStore
from moray.tasks.language import alterations
from moray.tasks.language.alterations import Alterations, as_facts
from moray.tasks.language.encode import Encoder
from moray.tasks.language.pieces import ROLES
from moray.tasks.language.preview import preview
from moray.tasks.language.proofs.split import compare_split
from moray.tasks.language.rows import (
    PackedRows,
    Segment,
    StoredSplit,
    encode_window,
    num_trained,
)

_SHOWN_DOCUMENTS = 3
_COMPARED, _MOST_CHARACTERS = 32, 400_000
_UNKNOWN = ("tokens", "documents")


def compare(dataset: Path, model: Path, store: Path, cfg: dict[str, Any]) -> Iterator[Comparison]:
    """Compare the tokens of the first documents of the test split with the tokenizer's own."""
    split = StoredSplit(store, "test")
    documents = first_documents(dataset / "test.parquet")
    return compare_split(model, documents, split.rows, split.segments, cfg)


def first_documents(file: Path) -> list[Document]:
    """The documents of a split whose tokens are compared with the tokenizer's own.

    Those behind so many characters are left out, as tokenising all again would take too long.
    """
    first = list(islice(chain.from_iterable(read_documents(file)), _COMPARED))
    sizes = accumulate(len(plain_text(document)) for document in first)
    return [one for one, size in zip(first, sizes, strict=True) if size <= _MOST_CHARACTERS]


def write_split(
    file: Path, store: OpenStore, encoder: Encoder, cfg: dict[str, Any]
) -> dict[str, Any]:
    """Tokenise a split into rows.

    Args:
        file: Parquet file of the split, named after it.
        store: where to write it. The test split's first documents are shown in `preview.txt`.
        cfg: format of the dataset, and the keys of the `data` section that tokens depend on. With
            `tokenize: on-the-fly`, rows of the train split aren't kept; the window reader of the
            task makes them.

    Returns:
        The facts of the split in the store's manifest, `weight` and `dropped_documents` among them.

    Raises:
        UserError: if documents can't be encoded.
    """
    split, train = file.stem, file.stem == "train"
    # The first worker reads validation and test from here, even if train is streamed.
    keep = not train or cfg["tokenize"] == "ahead"
    # Bytes are only needed for scoring.
    encode = partial(encode_window, encoder=encoder, packing=cfg["packing"], count_bytes=not train)
    with SplitWriter(store.folder, split, encoder.block_size, keep, store.journal) as writer:
        write_windows(writer, file, store, encode, encoder)
        return writer.facts()


def summary(facts: dict[str, dict[str, Any]], block_size: int) -> str:
    """The line that is printed about a store."""
    train = facts["train"]
    padding = 1 - train["tokens"] / (train["rows"] * block_size)
    dropped, cut = (
        sum(counts[f"{what}_documents"] for counts in facts.values()) for what in ("dropped", "cut")
    )
    return (
        f"{train['tokens']:,} in {train['rows']:,} rows to train on, "
        f"{train['weight'] / train['tokens']:.0%} of them trained, {padding:.1%} padding"
        + (f", {dropped:,} documents longer than a row dropped" if dropped else "")
        + (f", {cut:,} documents longer than a row cut" if cut else "")
        + remarks(facts)
    )


def remarks(facts: dict[str, dict[str, Any]]) -> str:
    """Remarks for a summary: tokens by role, alterations, and special tokens in texts."""
    return _roles(facts["train"]) + alterations.summary(facts) + _special_tokens(facts)


def warnings(facts: dict[str, dict[str, Any]], path: str) -> Iterator[str]:
    """Advice about a dataset with a key path; mostly none."""
    if cut := sum(split.get("cut_prompts", 0) for split in facts.values()):
        yield (
            f"warning: {path}: the prompts of {cut:,} documents are longer than a row, so their "
            "answers are trained without the beginning of the prompt; raise data.block_size, or "
            "leave such documents out with data.long_documents: drop"
        )
    counts = [split["prompts"] for split in facts.values() if "prompts" in split]
    prompts, spanning = (sum(one[key] for one in counts) for key in ("prompts", "spanning"))
    if spanning:
        yield (
            f"warning: {path}: in {spanning:,} of {prompts:,} texts, the last token of the prompt "
            "also has the first characters of the completion, so generation begins with other "
            "tokens than were trained; end the prompts without white space, at the end of a word, "
            "and begin the completions with the space"
        )
    if cost := alterations.cost_of_one_rendering(facts):
        yield f"{path}: {cost}"
    unknown = [split["unknown"] for split in facts.values() if "unknown" in split]
    if unknown:
        tokens, documents = (sum(one[key] for one in unknown) for key in _UNKNOWN)
        yield (
            f"warning: {path}: {tokens:,} tokens in {documents:,} documents are of characters that "
            "the tokenizer doesn't know, which are all one token to the model; remove or replace "
            "them, or choose a base model whose tokenizer knows them"
        )


def _roles(counts: dict[str, Any]) -> str:
    """The tokens of each role, unless all are of one."""
    roles = counts.get("roles", {})
    if len(roles) < 2:
        return ""
    shares = (
        (role, f"{count['tokens']:,}", f" ({count['trained']:,} trained)" * (count["trained"] > 0))
        for role, count in roles.items()
    )
    return "; tokens by role: " + ", ".join(f"{role} {of}{some}" for role, of, some in shares)


def _special_tokens(facts: dict[str, dict[str, Any]]) -> str:
    """The special tokens that documents have in their own text, for a summary.

    They may end the answer that they are in, or begin a turn that nobody said.
    """
    totals = Counter[str]()
    for counts in facts.values():
        totals.update(counts.get("special_tokens", {}))
    listing = ", ".join(f"{token} in {count:,}" for token, count in totals.most_common())
    return f"; special tokens in the text of documents: {listing}" if totals else ""


class SplitWriter(RowsWriter):
    """Appends windows to a split and counts their contents; unless rows are kept, nothing else."""

    def __init__(
        self,
        folder: Path,
        split: str,
        block_size: int,
        keep_rows: bool = True,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(folder, split, keep_rows, journal)
        self.folder = folder
        self.block_size = block_size
        self.keep_rows = keep_rows
        self._positions = self.open(f"{split}.segments")

    def add_window(self, window: PackedRows) -> None:
        if self._positions:
            segments = window.segments.astype("<i8")
            segments[:, Segment.START] += self.num_rows * self.block_size
            self._positions.write(segments.data)
        self.add(window.rows, num_trained(window.rows), self.counts_of(window))

    def counts_of(self, window: PackedRows) -> Counts:
        """What a window adds to the sums."""
        counts = Counts(
            {
                ("segments",): len(window.segments),
                ("tokens",): int(window.segments[:, Segment.LENGTH].sum()),
                ("dropped_documents",): window.dropped,
                ("cut_documents",): window.cut,
            }
        )
        for role, (untrained, trained) in zip(ROLES, window.roles.tolist(), strict=True):
            counts["roles", role, "tokens"] = untrained + trained
            counts["roles", role, "trained"] = trained
        for name, number in zip(_UNKNOWN, window.unknown, strict=True):
            counts["unknown", name] = number
        counts.update({("special", token): number for token, number in window.special.items()})
        counts.update({("template", *kind): number for kind, number in window.alterations.items()})
        return counts

    def facts(self) -> dict[str, Any]:
        counted = {key: counts for key, counts in self.counts.items() if counts}
        roles = {
            role: {what: self.counts["roles", role, what] for what in ("tokens", "trained")}
            for role in ROLES
            if ("roles", role, "tokens") in counted
        }
        templates = Alterations(
            {(kind[1], kind[2]): n for kind, n in self.counts.items() if kind[0] == "template"}
        )
        prompts = {kind: templates.pop((kind, ""), 0) for kind in ("prompts", "spanning")}
        cut_prompts = templates.pop(("cut_prompts", ""), 0)
        unknown = {name: self.counts["unknown", name] for name in _UNKNOWN}
        special = {kind[1]: n for kind, n in sorted(counted.items()) if kind[0] == "special"}
        whole = ("segments", "tokens", "dropped_documents", "cut_documents")
        return {
            **super().facts(),
            **{name: self.counts[name,] for name in whole},
            **({"roles": roles} if roles else {}),
            **({"chat_template": as_facts(templates)} if templates else {}),
            **({"prompts": prompts} if prompts["prompts"] else {}),
            **({"cut_prompts": cut_prompts} if cut_prompts else {}),
            **({"unknown": unknown} if any(unknown.values()) else {}),
            **({"special_tokens": special} if special else {}),
        }


def write_windows(
    writer: SplitWriter,
    file: Path,
    store: OpenStore,
    encode: MakeWindow[PackedRows],
    encoder: Encoder,
    names: Sequence[str] = ("document",),
) -> None:
    """Tokenise a split into a writer; of the test split, show the first documents in a preview.

    There, the pieces of a document have these names, in turn.

    Raises:
        UserError: if documents can't be encoded.
    """
    if file.stem == "test":
        documents = chain.from_iterable(read_documents(file))
        write_groups(writer.folder, file.stem, map(group_of, documents))
    for number, window in store.windows(file, encode, writer, f"tokenize {file.stem}"):
        if writer.keep_rows and number == 0:
            check_space(writer.folder, round(window.rows.nbytes / share_of_group(file, 0)))
        if file.stem == "test" and number == 0:
            # It doesn't name the store: equal stores have equal manifests.
            text = preview(window, read_group(file, 0), encoder, _SHOWN_DOCUMENTS, names)
            (writer.folder / "preview.txt").write_text(f"{file.stem} split\n{text}", "utf-8")
        writer.add_window(window)
