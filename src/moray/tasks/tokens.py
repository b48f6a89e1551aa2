"""The interface of the module `tokens` in the package of a task whose rows are tokens."""

from pathlib import Path
from typing import Any, Protocol

from moray.tasks.language.encode import Encoder


class TokensModule(Protocol):
    """A module that is imported by the name of the task."""

    def write_split(
        self, file: Path, store: Path, encoder: Encoder, cfg: dict[str, Any]
    ) -> dict[str, Any]:
        """Tokenise a split into rows of `moray.tasks.language.rows`.

        Args:
            file: Parquet file of the split, named after it.
            store: folder to write to. The test split's first documents are shown in `preview.txt`.
            encoder: turns documents into tokens.
            cfg: format of the dataset, and the keys of the `data` section that tokens depend on.
                With `tokenize: on-the-fly`, rows of the train split aren't kept; the window reader
                of the task makes them.

        Returns:
            The facts of the split in the store's manifest, `weight` and `dropped_documents` among
            them.

        Raises:
            UserError: if documents can't be encoded.
        """

    def summary(self, facts: dict[str, dict[str, Any]], block_size: int) -> str:
        """The line that is printed about a store.

        Args:
            facts: of each split.
            block_size: tokens of a row.
        """
