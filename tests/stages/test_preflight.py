"""All runs are looked over before the first stage begins."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from architectures import PACKED, build
from present import needs
from small_config import HUB, config_with, experiment_with

from moray.config import plan
from moray.config.load import load_experiment
from moray.errors import ConfigError
from moray.provenance.manifest import write_manifest
from moray.stages.preflight import preflight

CORES = len(os.sched_getaffinity(0))
RUNS = ["base", "tuned"]
ALONE = {
    "defaults.ray.num_workers": 1,
    "defaults.ray.use_gpu": False,
    "defaults.train.global_batch_size": CORES + 1,
}
# More checkpoints than any disk takes: reported where the shapes of the weights are known.
ENDLESS = {
    "defaults.train.save_total_limit": 10**15,
    "runs.base.train.max_steps": 10**18,
    "runs.tuned.train.max_steps": 10**18,
}

Unmet = Callable[..., list[str]]


@pytest.fixture
def unmet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unmet:
    """The lines that runs of a changed config cost, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    def unmet(runs: list[str] = RUNS, **values: Any) -> list[str]:
        experiment = load_experiment(config_with({**ALONE, **values}))
        try:
            preflight(experiment, runs)
        except ConfigError as error:
            return str(error).splitlines()
        return []

    return unmet


def test_sound_runs_pass(unmet: Unmet) -> None:
    assert unmet() == []


def test_a_patience_that_cannot_stop_a_run_is_said_before_anything_starts(
    unmet: Unmet, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"defaults.train.early_stopping_patience": 3, "defaults.train.eval_steps": 4}
    assert unmet(**keys) == []
    assert [line for line in capsys.readouterr().err.splitlines() if "warning" in line] == [
        "warning: runs.base.train.early_stopping_patience: got 3, which can't stop the run: that "
        "needs 4 evaluations, and there are 2 before the last step, 10; lower it to 1 "
        "or less, or lower eval_steps"
    ]
    assert unmet(**{**keys, "defaults.train.eval_steps": 2}) == []
    assert "warning" not in capsys.readouterr().err


def test_libraries_that_images_need_are_named_before_anything_starts(
    unmet: Unmet, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {
        "datasets.digits": {"source": "digits"},
        "models.seen": {"source": "scratch-vision", "classes_of": "digits"},
        "runs.seen": {"model": "seen", "dataset": "digits"},
    }
    assert unmet(["seen"], **images) == []
    monkeypatch.setattr("moray.stages.preflight.find_spec", lambda name: None)
    assert unmet(["seen"], **images) == [
        "datasets.digits: needs packages that are not installed: Pillow, "
        "Matplotlib, scikit-learn; pip install 'moray[vision]'"
    ]
    assert unmet(["base"], **images) == []


def test_packages_that_trackers_need_are_named_before_anything_starts(
    unmet: Unmet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("moray.tracking.interface.version", version)
    assert unmet() == []
    assert unmet(**{"runs.tuned.tracking": ["mlflow", "tensorboard"]}) == [
        "runs.tuned.tracking: mlflow needs packages that are missing: alembic, mlflow-skinny, "
        "sqlalchemy; pip install 'moray[mlflow]'",
        "runs.tuned.tracking: tensorboard needs packages that are missing: tensorboard; "
        "pip install 'moray[tensorboard]'",
    ]


def test_each_run_is_reported(unmet: Unmet) -> None:
    faults = {"runs.base.ray.num_workers": CORES + 1, "runs.tuned.ray.storage_path": "file"}
    assert [line.partition(":")[0] for line in unmet(**faults)] == [*faults][:1]
    Path("file").touch()
    assert [line.partition(":")[0] for line in unmet(**faults)] == [*faults]


def test_only_the_runs_that_are_due_are_looked_over(unmet: Unmet) -> None:
    fault = {"runs.base.ray.num_workers": CORES + 1}
    assert unmet(["tuned"], **fault) == []
    assert len(unmet(["base"], **fault)) == 1


def test_what_runs_share_is_reported_once(unmet: Unmet, tmp_path: Path) -> None:
    Path("results").touch()
    assert unmet(**{"defaults.ray.storage_path": "state"}) == [
        "the working directory: can't write to results, because "
        f"{tmp_path}/results is not a writable folder; change its permissions or choose another "
        "folder"
    ]


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "models/folder"))


def knows_shapes(lines: list[str]) -> bool:
    return any("bytes free, expected" in line for line in lines)


@pytest.mark.parametrize(
    ("run", "model"), [("base", "tiny"), ("tuned", "tiny"), ("base", "folder")]
)
@pytest.mark.usefixtures("folder")
def test_of_a_model_from_scratch_of_another_run_or_of_a_folder_the_shapes_are_known(
    unmet: Unmet, run: str, model: str
) -> None:
    values = {"runs.base.model": model}
    assert unmet([run], **values) == []
    assert knows_shapes(unmet([run], **values, **ENDLESS))


def test_a_folder_whose_weights_are_damaged_is_reported(unmet: Unmet, folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (line,) = unmet(**{"runs.base.model": "folder", **ENDLESS})
    assert line.startswith("models/folder/model.safetensors: can't read the weights (")


ON_THE_HUB = {"models.far": HUB, "runs.base.model": "far", **ENDLESS}


def test_of_a_model_of_the_hub_the_shapes_are_known_once_all_of_it_is_here(
    unmet: Unmet, model_folder: Path
) -> None:
    assert unmet(**ON_THE_HUB) == []
    copy = Path(shutil.copytree(model_folder, "results/models/far"))
    experiment = load_experiment(config_with({**ALONE, **ON_THE_HUB}))
    write_manifest(copy, model=plan.model_config(experiment, "far"))
    assert knows_shapes(unmet(**ON_THE_HUB))
    # What is there in part is downloaded again.
    (copy / "manifest.json").unlink()
    (copy / "model.safetensors").write_bytes(b"half")
    assert unmet(**ON_THE_HUB) == []


# Of the model that tests share: 128 positions.
TOO_LONG = {"runs.base.data.block_size": 129}
LINE = (
    "runs.base.data.block_size: makes sequences of 129 tokens, expected at most 128, the model's "
    "maximum length; "
    "lower it or choose another model"
)


def test_rows_longer_than_the_model_of_a_folder_or_of_another_run_takes_are_reported(
    unmet: Unmet, folder: Path
) -> None:
    on_folder = {"runs.base.model": "folder"}
    assert unmet(["base"], **on_folder, **TOO_LONG) == [LINE]
    assert unmet(["base"], **on_folder, **{"runs.base.data.block_size": 128}) == []
    of_tuned = {"runs.tuned.data": {"block_size": 129}}
    assert unmet(**on_folder, **of_tuned) == [LINE.replace("base", "tuned")]
    (folder / "config.json").write_text('{"n_positions": 64}')
    (line,) = unmet(["base"], **on_folder, **TOO_LONG)
    assert "expected at most 64, the model" in line


def test_a_chat_template_that_nobody_has_is_missed_before_anything_starts(
    unmet: Unmet, folder: Path
) -> None:
    values: dict[str, Any] = {
        "models.tiny": {"source": "path", "path": str(folder)},
        "datasets.talks": {"source": "files", "path": "talks.json", "format": "messages"},
        "runs.base.dataset": "talks",
        "runs.base.data.block_size": 8,
    }
    Path("talks.json").write_text("[]")
    (line,) = unmet(["base"], **values)
    assert line.startswith("runs.base.data.chat_template: is not set, and the tokenizer of models.")
    assert unmet(["base"], **values | {"runs.base.data.chat_template": "{{ messages }}"}) == []
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert unmet(["base"], **values) == []
    values["runs.base.data.template_variables"] = {"enable_thinking": False}
    (line,) = unmet(["base"], **values)
    assert line == (
        "runs.base.data.template_variables: got enable_thinking, which the chat template doesn't "
        "use; check the spelling, or remove it"
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}{{ enable_thinking }}")
    assert unmet(["base"], **values) == []


def test_the_hub_is_asked_unless_jobs_are_only_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("moray.model.obtain.hub_config", lambda repo, _: asked.append(repo))
    far = config_with({**ALONE, "models.far": HUB, "runs.base.model": "far"})
    preflight(load_experiment(far), ["base"], ask_hub=False)
    assert asked == []
    preflight(load_experiment(far), ["base"])
    assert asked == [HUB["repo_id"]]


def test_rows_longer_than_a_model_of_the_hub_takes_are_reported_before_it_is_here(
    unmet: Unmet, model_folder: Path
) -> None:
    values = {"models.far": HUB, "runs.base.model": "far", **TOO_LONG}
    assert unmet(["base"], **values) == []
    snapshot = Path("cache/models--owner--name/snapshots", HUB["revision"])
    snapshot.mkdir(parents=True)
    shutil.copy(model_folder / "config.json", snapshot)
    assert unmet(["base"], **values) == [LINE]


@pytest.mark.parametrize("model", ["tiny", "folder"])
def test_layers_of_adapters_that_the_base_does_not_have_are_reported(
    unmet: Unmet, folder: Path, model: str
) -> None:
    named = {"runs.base.model": model, "runs.base.adapter.target_modules": ["q_proj"]}
    assert unmet(["base"], **named) == []
    names = ["self_attn.q_proj", "v_prj", "c_attn_of_another"]
    assert unmet(["base"], **{**named, "runs.base.adapter.target_modules": names}) == [
        "runs.base.adapter.target_modules: got v_prj, expected the name of a layer with weights of "
        "its own; did you mean v_proj?",
        "runs.base.adapter.target_modules: got c_attn_of_another, expected the name of a layer "
        "with weights of its own; choose all-linear",
    ]


@pytest.mark.parametrize("architecture", ["Qwen3-MoE", "Mixtral"])
def test_what_experts_do_not_take_is_reported(unmet: Unmet, architecture: str) -> None:
    build(PACKED[architecture]()).save_pretrained("models/experts")
    model = {"models.experts": {"source": "path", "path": "models/experts"}}
    keys = model | {"runs.base.model": "experts", "runs.base.data.block_size": 8}
    usual = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for targets in ("all-linear", usual):
        adapter = {"runs.base.adapter.target_modules": targets}
        assert unmet(["base"], **keys, **adapter) == []
        assert unmet(["base"], **keys, **adapter, **{"runs.base.adapter.dropout": 0.05}) == []
        (line,) = unmet(["base"], **keys, **adapter, **{"runs.base.adapter.use_dora": True})
        kind = {"Qwen3-MoE": "qwen3_moe", "Mixtral": "mixtral"}[architecture]
        assert line == (
            f"runs.base.adapter.use_dora: can't be used with the experts of a {kind} model, which "
            "share a tensor; set it to false, or target_modules to [k_proj, o_proj, q_proj, v_proj]"
        )
    (line,) = unmet(["base"], **keys, **{"runs.base.adapter.target_modules": ["q_prj"]})
    assert line == (
        "runs.base.adapter.target_modules: got q_prj, expected the name of a layer; did you mean "
        "q_proj?"
    )


@needs("quantized_base")
def test_experts_that_are_not_quantized_are_reported(unmet: Unmet) -> None:
    build(PACKED["Mixtral"]()).save_pretrained("models/experts")
    keys = {
        "models.experts": {"source": "path", "path": "models/experts"},
        "runs.base.model": "experts",
        "runs.base.data.block_size": 8,
        "runs.base.adapter.quantize_base": "8bit",
    }
    (line,) = unmet(["base"], **keys)
    assert line.startswith(
        "runs.base.adapter.quantize_base: 8bit doesn't quantize the experts of a mixtral model ("
    )
    assert line.endswith("set it to 4bit, or to null and base_dtype: bf16")
    assert unmet(["base"], **keys | {"runs.base.adapter.quantize_base": "4bit"}) == []


def test_modules_that_the_base_does_not_have_are_reported(unmet: Unmet, folder: Path) -> None:
    named = {"runs.base.model": "folder"}
    for keys, line in (
        ({"modules_to_save": ["lm_hed"]}, "modules_to_save: got lm_hed, expected the name of a "),
        ({"target_modules": r".*\.(q|v)_prj"}, r"target_modules: got .*\.(q|v)_prj, expected an "),
    ):
        (found,) = unmet(["base"], **named, **{"runs.base.adapter": keys})
        assert found.startswith(f"runs.base.adapter.{line}")
    assert unmet(["base"], **named, **{"runs.base.adapter": {"target_modules": ".*v_proj"}}) == []


def test_a_base_without_a_load_balancing_loss_is_reported(unmet: Unmet, folder: Path) -> None:
    build(PACKED["Mixtral"]()).save_pretrained("models/experts")
    keys = {
        "models.experts": {"source": "path", "path": "models/experts"},
        "runs.base.model": "experts",
        "runs.base.data.block_size": 8,
        "runs.base.train.router_aux_loss": True,
    }
    assert unmet(["base"], **keys) == []
    assert unmet(["base"], **keys | {"runs.base.model": "folder"}) == [
        "runs.base.train.router_aux_loss: transformers has no load-balancing loss for llama "
        "models; set it to false"
    ]


def test_new_tokens_of_a_base_are_not_sharded_with_an_adapter(unmet: Unmet, folder: Path) -> None:
    """As if the config named them."""
    values = {"runs.base.model": "folder", "runs.base.adapter": {}}
    sharded = values | {"runs.base.train.strategy": "fsdp2"}
    assert unmet(["base"], **sharded) == []
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"new_token_ids": [3, 4]}))
    assert unmet(["base"], **values) == []
    assert unmet(["base"], **sharded) == [
        "runs.base.adapter: can't be combined with train.strategy: fsdp2, because PEFT's layer for "
        "the rows of new_token_ids in models/folder/config.json can't be sharded; set strategy to "
        "ddp, or train the embeddings whole, unless both share their weights (modules_to_save: "
        "[embed_tokens, lm_head])"
    ]
    sharded["runs.base.adapter"] = {"modules_to_save": ["embed_tokens", "lm_head"]}
    assert not any("new_token_ids" in line for line in unmet(["base"], **sharded))


UNREADABLE = """
import json, os, sys
from moray.config.load import load_experiment
from moray.errors import ConfigError
from moray.stages.preflight import preflight

experiment = load_experiment(json.loads(sys.argv[1]))
# Permissions don't count for root.
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    preflight(experiment, ["base", "tuned"])
except ConfigError as error:
    print(error)
"""


def test_files_that_cannot_be_read_are_reported_all_of_them(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "notes").mkdir()
    names = ["notes/b.txt", "notes/a.txt", "models/folder/model.safetensors"]
    for name in ["notes/readable.txt", *names]:
        (tmp_path / name).touch()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    for name in names:
        (tmp_path / name).chmod(0)
    config = config_with({**ALONE, "runs.base.model": "folder", "runs.tuned.dataset": "notes"})
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE, json.dumps(config)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "datasets.notes.path: can't read notes/a.txt; change its permissions",
        "datasets.notes.path: can't read notes/b.txt; change its permissions",
        "models.folder.path: can't read models/folder/model.safetensors; change its permissions",
    ]


def test_continuations_that_leave_no_room_for_a_prompt_are_known_before_the_first_job(
    model_folder: Path,
) -> None:
    values: dict[str, Any] = {
        **ALONE,
        "models.tiny": {"source": "path", "path": str(model_folder)},
        "runs.base.model": "tiny",
        "runs.base.data.block_size": 8,
    }
    preflight(load_experiment(config_with(values)), [])
    longest = {"runs.base.generate.max_new_tokens": 127}
    preflight(load_experiment(config_with(values | longest)), [], generated=["base"])
    with pytest.raises(
        ConfigError,
        match=r"^runs.base.generate.max_new_tokens: got 128, which leaves no room for a prompt in "
        r"the 128 tokens of models.tiny; lower it$",
    ):
        preflight(load_experiment(config_with(values)), [], generated=["base"])


def test_what_metrics_and_uploading_need_is_known_before_the_first_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moray.tasks.language.metric_requirements.find_spec", lambda name: None)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    wanted = {
        "runs.tuned.generate": {"metrics": ["chrf"]},
        "runs.tuned.push": {"repo": "user/tuned"},
    }
    due, experiment = ["tuned"], experiment_with(wanted)
    with pytest.raises(ConfigError) as raised:
        preflight(experiment, [], generated=due, pushed=due)
    metrics, upload = str(raised.value).splitlines()
    assert upload.startswith("runs.tuned.push: pushing to the Hub needs a token")
    assert metrics.startswith("runs.tuned.generate.metrics: chrf needs a package")


def test_an_adapter_that_is_trained_further_has_the_keys_of_its_file(
    unmet: Unmet, model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before/adapter_model.safetensors").touch()
    stored = {"r": 16, "lora_alpha": 32, "use_rslora": False}
    (tmp_path / "before/adapter_config.json").write_text(json.dumps(stored))
    keys: dict[str, Any] = {
        "models.folder": {"source": "path", "path": str(model_folder), "adapter": "before"},
        "runs.base.model": "folder",
        "runs.base.adapter": {"rank": 16, "alpha": 32, "create_new_adapter": False},
    }
    assert unmet(["base"], **keys) == []
    keys["runs.base.adapter"] |= {"alpha": 16, "use_rslora": True}
    assert unmet(["base"], **keys) == [
        "runs.base.adapter.alpha: got 16.0, and the adapter in before has 32; set it to 32",
        "runs.base.adapter.use_rslora: got True, and the adapter in before has False; set it to "
        "False",
    ]
