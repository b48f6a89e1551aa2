"""Names of files that can be written."""

import os

from moray.errors import UserError


def check_name(path: str, key: str) -> None:
    """Check that the name of a file is text, which those from old archives may not be.

    Raises:
        UserError: if it isn't.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            key, f"the name of {os.fsencode(path)!r} isn't UTF-8", "rename the file"
        ) from error
