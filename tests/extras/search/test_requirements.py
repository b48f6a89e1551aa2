"""What a search needs is known before the first job."""

from pathlib import Path

import pytest
from small_config import experiment_with

from moray.errors import ConfigError
from moray.stages.preflight import preflight

ALONE = {
    "defaults.ray": {"num_workers": 1, "use_gpu": False},
    "runs.tuned.search": {
        "trials": 2,
        "space": {"adapter.target_modules": [["q_proj"], ["q_prj", "v_proj"]]},
    },
}


def test_a_search_needs_its_library_and_values_that_its_model_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = experiment_with(ALONE)
    # Without `snakemake search`, it doesn't matter.
    monkeypatch.setattr("moray.extras.search.requirements.find_spec", lambda name: None)
    preflight(experiment, ["tuned"])
    with pytest.raises(ConfigError) as raised:
        preflight(experiment, [], stages={"search": ["tuned"]})
    value, library = str(raised.value).splitlines()
    assert value.startswith("runs.tuned.adapter.target_modules: got q_prj, expected the name of a ")
    assert library == (
        "runs.tuned.search: needs optuna, which is not installed; pip install 'moray[search]'"
    )
