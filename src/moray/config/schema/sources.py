"""What all datasets have, wherever their rows come from."""

from pydantic import Field

from moray.config.schema.base import Section
from moray.config.splits import Split

# Of sources that may come with splits.
VALIDATION_SHARE = Field(
    0.05, description="Share of train to use as the validation split, if none is given."
)
TEST_SHARE = Field(0.05, description="Share of train to use as the test split, if none is given.")


class Source(Section):
    """Base class of all datasets."""

    @property
    def libraries(self) -> dict[str, str]:
        """Optional libraries that the dataset needs, and the module of each."""
        return {}

    @property
    def given_splits(self) -> set[Split]:
        """The splits that the source provides; the others are taken from train."""
        return {"train"}

    @property
    def files(self) -> dict[Split, dict[str, list[str]]]:
        """The user's files that each split is read from: paths or globs, by their key."""
        return {}

    def state(self, path: str) -> dict[str, str]:
        """What the rows depend on besides the keys and the files.

        Args:
            path: of this section in the config, for errors.

        Raises:
            UserError: if it can't be found out.
        """
        return {}
