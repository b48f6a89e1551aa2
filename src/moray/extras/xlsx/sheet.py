"""The rows of a spreadsheet, with the values that a CSV file of it would have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from openpyxl import load_workbook
from openpyxl.utils.exceptions import InvalidFileException

from moray.corpus.values import spelling_of
from moray.errors import UserError, first_line


def first_sheet(file: Path) -> tuple[Iterator[tuple[int, list[str]]], list[str]]:
    """The rows of the first sheet that have a value, and the names of all sheets.

    Returns:
        The number of each row, from 1 on, and its values as text, without empty ones at the end;
        of a formula, its last result.

    Raises:
        UserError: if the file is no spreadsheet, or has no sheet with cells.
    """
    try:
        workbook = load_workbook(file, read_only=True, data_only=True)
    # A SyntaxError of XML.
    except (BadZipFile, InvalidFileException, KeyError, SyntaxError, ValueError) as error:
        raise UserError(
            str(file),
            f"can't read the spreadsheet ({first_line(error)})",
            "save it as .xlsx again, without a password, or as .csv",
        ) from error
    if not workbook.worksheets:
        raise UserError(str(file), "got no sheet with cells, expected one", "add it")
    sheet = workbook.worksheets[0]
    # Some programs write a wrong size.
    sheet.reset_dimensions()
    return _rows(sheet), workbook.sheetnames


def _rows(sheet: Any) -> Iterator[tuple[int, list[str]]]:
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        values = [spelling_of(value) or "" for value in cells]
        while values and not values[-1]:
            values.pop()
        if values:
            yield number, values
