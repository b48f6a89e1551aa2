"""The section of a run that says where its model is uploaded to."""

from pydantic import Field

from moray.config.schema.base import Section


class Push(Section):
    """Where `snakemake push` uploads the model and its card to."""

    repo: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Repository of the Hub, `owner/name`. It is created if it isn't there. Each "
        "run needs one of its own.",
    )
    private: bool = Field(
        True,
        description="Whether a repository that is created is private. One that is there stays as "
        "it is.",
    )
