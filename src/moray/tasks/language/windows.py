"""Windows of a split: the documents of one row group of the dataset, tokenised and packed."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from moray.corpus.dataset import read_documents, read_group
from moray.corpus.document import Document
from moray.errors import UserError
from moray.provenance.manifest import read_manifest
from moray.rows.store import Rows
from moray.rows.windows import WindowReader, stored_windows
from moray.tasks.language.encode import Encoder
from moray.tasks.language.recipe import make_encoder
from moray.tasks.language.rows import Packed, pack_rows
from moray.tasks.language.store import ROWS_FROM, TOKENIZER

# Number of windows in progress. Python packs and writes some while the tokenizer's threads work on
# others. Each of these threads takes one document, so with long documents a single window wouldn't
# keep all of them busy.
_AT_ONCE = min(8, max(2, os.cpu_count() or 1))

EncodeWindow = Callable[[list[Document], int], Packed]
"""From the documents of a row group and the number of the first one in its split to rows."""


def encode_window(
    documents: list[Document],
    first_document: int,
    encoder: Encoder,
    packing: bool,
    count_bytes: bool,
) -> Packed:
    """Tokenise and pack a window; deterministic in its arguments.

    Args:
        documents: the documents of a row group.
        first_document: number of the first one in its split.
        encoder: tokenises the documents.
        packing: whether documents share rows.
        count_bytes: whether to count the bytes of each segment.

    Raises:
        UserError: naming the row that can't be encoded.
    """
    pieces, dropped = encoder.encode(documents, first_document, count_bytes)
    packed = pack_rows(pieces, encoder.block_size, encoder.dtype, packing)
    return Packed(packed.rows, packed.segments, dropped)


def encode_windows(file: Path, encode: EncodeWindow) -> Iterator[Packed]:
    """Yield all windows of a split in order, a few in memory at a time.

    Args:
        file: the split.
        encode: tokenises and packs a window; called in threads.

    Raises:
        UserError: naming the file and the row that can't be encoded.
    """
    waiting: deque[Future[Packed]] = deque()
    first_document = 0
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            for documents in read_documents(file):
                waiting.append(threads.submit(encode, documents, first_document))
                first_document += len(documents)
                if len(waiting) == _AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except UserError as error:
            at_fault = f"{file}, {error.path}" if error.path.startswith("row ") else error.path
            raise UserError(at_fault, error.problem, error.remedy) from error


def window_reader(store: Path, rows_url: str) -> WindowReader:
    """Return a function that reads a window's rows, or tokenises them if the store lacks them.

    Args:
        store: token store.
        rows_url: folder or URL of the store's files, or of a copy of them.
    """
    manifest = read_manifest(store)
    if manifest["recipe"]["tokenize"] == "on-the-fly":
        recipe = json.dumps(manifest["recipe"])
        return lambda window: _made_again(str(store), recipe, window)
    return stored_windows(store, rows_url)


def _made_again(store: str, recipe: str, window: int) -> Rows:
    # The task has reserved one CPU; by default, tokenizers uses all of them.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    encoder = _encoder(store, recipe)
    # Rows don't contain document numbers, so 0 is as good as any.
    documents = read_group(Path(store, ROWS_FROM), window)
    packing = json.loads(recipe)["packing"]
    return encode_window(documents, 0, encoder, packing, count_bytes=False).rows


@lru_cache(maxsize=1)
def _encoder(store: str, recipe: str) -> Encoder:
    return make_encoder(Path(store, TOKENIZER), json.loads(recipe))
