"""The table of architectures in the documentation, held against those that are tested."""

from pathlib import Path

from architectures import HYBRID, PACKED, UNPACKED

PAGE = Path(__file__).parents[2] / "docs/architectures.md"


def test_the_table_names_those_that_are_tested_and_how_they_fill_rows() -> None:
    rows = dict.fromkeys(PACKED, "packed") | dict.fromkeys(UNPACKED | HYBRID, "one document each")
    configs = PACKED | UNPACKED | HYBRID
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    named = [line.split(" | ")[:3] for line in table[2:]]
    assert named == [[f"| {n}", f"`{configs[n]().model_type}`", rows[n]] for n in rows]
