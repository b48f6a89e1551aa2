"""Peak memory of tokenising, in a process of its own for each size of text."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.stages.download import download

_TOKENIZE = """
import json, re, sys
from pathlib import Path
from moray.tasks.language.tokenize import tokenize
dataset, tokenizer, output, cfg = sys.argv[1:]
tokenize(Path(dataset), Path(tokenizer), Path(output), json.loads(cfg))
# Not getrusage, whose peak is the parent's where that was larger.
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def peaks(
    tokenizer: Path, block_size: int, folder: Path, megabytes: Iterable[int]
) -> Iterator[tuple[int, float]]:
    """For each size of synthetic text, the largest resident memory of the stage, in MB."""
    cfg = {"format": "text", **result_keys(Data(block_size=block_size))}
    for size in megabytes:
        dataset = folder / f"synthetic-{size}"
        download(dataset, {"source": "synthetic", "size_gb": size / 1000})
        command = [sys.executable, "-c", _TOKENIZE, dataset, tokenizer, folder / f"tokens-{size}"]
        done = subprocess.run(
            [*map(str, command), json.dumps(cfg)], check=True, capture_output=True, text=True
        )
        # The kernel counts in KiB.
        yield size, int(done.stdout.split()[-1]) * 1024 / 1e6
