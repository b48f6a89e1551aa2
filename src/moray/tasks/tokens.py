"""The tokenising of a task's datasets."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from moray.tasks.language.encode import Encoder


class TokensModule(Protocol):
    """The module `tokens` of a task's package, of tasks whose rows are tokens."""

    def write_split(
        self, file: Path, store: Path, encoder: "Encoder", cfg: dict[str, Any]
    ) -> dict[str, Any]:
        """Tokenise a split into a store.

        Args:
            file: the split as Parquet, with the split's name.
            store: folder to write to. The test split's first documents are shown in `preview.txt`.
            encoder: turns documents into tokens.
            cfg: format of the dataset, and the keys of the `data` section that tokens depend on.

        Returns:
            The facts of the split in the store's manifest.

        Raises:
            UserError: if documents can't be encoded.
        """

    def summary(self, facts: dict[str, dict[str, Any]], block_size: int) -> str:
        """What a store holds, in words.

        Args:
            facts: of each split.
            block_size: tokens of a row.
        """


def tokens_of(task: str) -> TokensModule:
    """The module of a task."""
    # By name, so that a store depends on the code of its own task alone; see `config.code`.
    return cast(TokensModule, import_module(f"moray.tasks.{task}.tokens"))
