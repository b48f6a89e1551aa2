"""Tokenise a dataset once, into the packed store that training and evaluation read."""

from moray.console import say
from moray.corpus.dataset import SPLITS, read_documents
from moray.errors import UserError
from moray.provenance.manifest import new_folder, write_manifest
from moray.stages.boundary import Folder, Section, command_line
from moray.tokens.encode import encode, load_tokenizer
from moray.tokens.store import SplitWriter


def tokenize(dataset: Folder, model: Folder, output: Folder, cfg: Section) -> None:
    """Write the store of a dataset's three splits, and its manifest last.

    Args:
        dataset: folder with the splits as Parquet.
        model: Hugging Face folder with the tokenizer.
        output: folder to write to.
        cfg: format of the dataset and the `data` section of the config.
    """
    tokenizer = load_tokenizer(model)
    block_size = cfg["block_size"]
    new_folder(output)
    counts = {}
    for split in SPLITS:
        with SplitWriter(output, split, block_size, len(tokenizer)) as writer:
            first_document = 0
            for documents in read_documents(dataset / f"{split}.parquet"):
                writer.add(encode(tokenizer, documents, block_size, first_document))
                first_document += len(documents)
            counts[split] = writer.finish()
            dtype = writer.dtype.str
        if split != "validation" and counts[split]["trained_tokens"] == 0:
            raise UserError(
                f"{dataset}/{split}.parquet",
                "got no token to train after tokenising",
                f"check the format ({cfg['format']}) and data.block_size ({block_size})",
            )
    write_manifest(output, block_size=block_size, dtype=dtype, splits=counts)
    train = counts["train"]
    say(
        f"tokens {output.name}: {train['tokens']:,} in {train['rows']:,} rows to train on, "
        f"{train['trained_tokens'] / train['tokens']:.0%} of them trained, "
        f"{1 - train['tokens'] / (train['rows'] * block_size):.1%} padding"
    )


if __name__ == "__main__":
    command_line(tokenize)
