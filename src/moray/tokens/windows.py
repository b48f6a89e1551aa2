"""Windows of a split: the documents of a row group of its dataset, tokenised and packed."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import fsspec
import numpy as np

from moray.corpus.dataset import read_documents, read_group
from moray.corpus.document import Document
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.tokens.encode import Encoder
from moray.tokens.recipe import make_encoder
from moray.tokens.rows import Packed, Rows, pack_rows, row_type
from moray.tokens.store import ROWS_FROM, TOKENIZER

# Some are packed and written by Python while the tokenizer's own threads are at others, of which
# each takes a document: with long documents, one window doesn't keep them all busy.
_AT_ONCE = min(8, max(2, os.cpu_count() or 1))

WindowReader = Callable[[int], Rows]
"""Gives the rows of a window of the train split."""


def encode_window(
    documents: list[Document],
    first_document: int,
    encoder: Encoder,
    packing: bool,
    count_bytes: bool,
) -> Packed:
    """A window, the same whenever and wherever it is made.

    Args:
        documents: of a row group.
        first_document: number of the first one in its split.
        encoder: tokenises.
        packing: whether documents share rows.
        count_bytes: whether segments know their bytes.

    Raises:
        UserError: naming the row that can't be encoded.
    """
    pieces, dropped = encoder.encode(documents, first_document, count_bytes)
    packed = pack_rows(pieces, encoder.block_size, encoder.dtype, packing)
    return Packed(packed.rows, packed.segments, dropped)


def encode_windows(
    file: Path, encoder: Encoder, packing: bool, count_bytes: bool
) -> Iterator[Packed]:
    """All windows of a split in order, a few of them in memory at a time; see `encode_window`.

    Raises:
        UserError: naming the file and the row that can't be encoded.
    """
    waiting: deque[Future[Packed]] = deque()
    first_document = 0
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            for documents in read_documents(file):
                arguments = (documents, first_document, encoder, packing, count_bytes)
                waiting.append(threads.submit(encode_window, *arguments))
                first_document += len(documents)
                if len(waiting) == _AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except UserError as error:
            at_fault = f"{file}, {error.path}" if error.path.startswith("row ") else error.path
            raise UserError(at_fault, error.problem, error.remedy) from error


def window_reader(store: Path, rows_url: str) -> WindowReader:
    """What gives the rows of a window, from any process that reaches the store.

    Args:
        store: token store.
        rows_url: folder or URL of the store's files, which may be a copy.
    """
    manifest = read_manifest(store)
    if manifest["recipe"]["tokenize"] == "on-the-fly":
        recipe = json.dumps(manifest["recipe"])
        return lambda window: _made_again(str(store), recipe, window)
    sizes = np.array(manifest["splits"]["train"]["windows"])
    ends = np.cumsum(sizes)
    record = row_type(manifest["block_size"], np.dtype(manifest["dtype"]))
    url = f"{rows_url}/train.rows"

    def read(window: int) -> Rows:
        end = int(ends[window]) * record.itemsize
        start = end - int(sizes[window]) * record.itemsize
        files, path = fsspec.core.url_to_fs(url)
        return np.frombuffer(files.cat_file(path, start=start, end=end), record)

    return read


def _made_again(store: str, recipe: str, window: int) -> Rows:
    # The task has reserved one CPU; tokenizers would take them all.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    encoder = _encoder(store, recipe)
    # Rows don't hold the numbers of their documents.
    documents = read_group(Path(store, ROWS_FROM), window)
    packing = json.loads(recipe)["packing"]
    return encode_window(documents, 0, encoder, packing, count_bytes=False).rows


@lru_cache(maxsize=1)
def _encoder(store: str, recipe: str) -> Encoder:
    return make_encoder(Path(store, TOKENIZER), json.loads(recipe))
