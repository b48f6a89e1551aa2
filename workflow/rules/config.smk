"""The config, from a file that Snakemake can read."""

import sys
from pathlib import Path

from moray.config.load import check_encoding
from moray.errors import UserError

CONFIG = Path("config/config.yaml")

try:
    # Not there if another workflow, which uses this one as a module, brings the config.
    if CONFIG.exists():
        check_encoding(CONFIG)
except UserError as error:
    sys.exit(str(error))


configfile: CONFIG
