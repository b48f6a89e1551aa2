import json
import shutil
from pathlib import Path

import pytest
from conversations import CHATML, TALKS
from exported import train_run

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import SPLITS
from moray.corpus.documents import write_dataset
from moray.provenance.manifest import write_manifest
from moray.tasks.language.tokenize import tokenize


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, chat_folder: Path) -> Path:
    """A folder with `start`, and `run` with what a run of two steps on it records."""
    folder = tmp_path_factory.mktemp("trained")
    start = Path(shutil.copytree(chat_folder, folder / "start"))
    settings = json.loads((start / "generation_config.json").read_text())
    (start / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [0, 321]}))
    write_manifest(start, architecture="llama", isolates_documents=True)
    pairs = ((split, talk) for split in SPLITS for talk in TALKS)
    write_dataset(folder / "talks", pairs, "messages", {"source": "test"})
    data = Data(chat_template=CHATML, block_size=64)
    cfg = {"format": "messages", **result_keys(data)}
    tokenize(folder / "talks", start, folder / "tokens", cfg)
    train_run(folder, "run", None)
    return folder
