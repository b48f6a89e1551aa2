"""Load the config file, if it is valid UTF-8."""

import sys
from pathlib import Path

from moray.config.load import check_encoding
from moray.errors import UserError

CONFIG = Path("config/config.yaml")

try:
    # Doesn't exist if another workflow uses this one as a module and passes the config.
    if CONFIG.exists():
        check_encoding(CONFIG)
except UserError as error:
    sys.exit(str(error))


configfile: CONFIG
