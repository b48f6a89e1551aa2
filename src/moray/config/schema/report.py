"""The section of the report."""

from typing import Annotated

from pydantic import Field

from moray.config.schema.base import Section

Line = Annotated[str, Field(pattern=r"^[^\n]*\S[^\n]*$")]


class Report(Section):
    """What the report says of the experiment as a whole. Only the report is made again for it."""

    title: Line | None = Field(
        None, description="Heading of the report, such as the question that the runs answer."
    )
    author: Line | None = Field(None, description="Who made it; stands below the heading.")
    text: str | None = Field(
        None,
        description="Text below the heading. Blank lines separate paragraphs; it is shown as it "
        "is, without markup.",
    )
