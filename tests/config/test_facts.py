"""Facts about formats, tasks and strategies: there are some for every name of the config."""

from importlib.util import find_spec
from typing import get_args

from project import ROOT

from moray.config import extras
from moray.config.schema.datasets import LocalFiles
from moray.config.schema.experiment import Run
from moray.config.schema.models import PathModel
from moray.config.schema.strategies import STRATEGIES, StrategyName
from moray.config.tasks import FORMATS, MODALITIES, TASKS, FormatName, TaskName


def test_each_format_has_columns_a_task_and_a_description() -> None:
    described = str(LocalFiles.model_fields["format"].description)
    assert FORMATS.keys() == set(get_args(FormatName))
    for name, format in FORMATS.items():
        assert f"`{name}`: " in described
        assert {*format.nested, *format.classes} <= format.columns.keys()
        assert format.types.keys() <= {*format.kept}
        assert format.task in TASKS


def test_each_task_has_facts_and_its_section_is_one_of_a_run() -> None:
    assert TASKS.keys() == set(get_args(TaskName))
    of_datasets = {format.task for format in FORMATS.values()}
    for name, task in TASKS.items():
        modules = ["task"]
        if name in of_datasets:
            modules += ["evaluation", *(["tokens"] if task.modality == "text" else [])]
        assert all(find_spec(f"moray.tasks.{name}.{module}") for module in modules)
        assert not task.section_path or task.section_path.partition(".")[0] in Run.model_fields


def test_each_modality_is_of_tasks_and_its_key_is_one_of_a_base_model() -> None:
    assert MODALITIES.keys() == {task.modality for task in TASKS.values()}
    for modality, facts in MODALITIES.items():
        assert TASKS[facts.task].modality == modality
        assert all(find_spec(f"moray.tasks.{facts.task}.{one}") for one in ("base_model", "export"))
        assert not facts.model_key or facts.model_key in PathModel.model_fields
        assert bool(find_spec(f"moray.tasks.{facts.task}.report")) == facts.has_part
        assert all((ROOT / f"workflow/rules/{stage}.smk").is_file() for stage in facts.stages)


def test_each_strategy_has_facts_and_a_module() -> None:
    assert STRATEGIES.keys() == set(get_args(StrategyName))
    for name in STRATEGIES:
        folder = extras.STRATEGIES.get(name)
        module = f"extras.{folder}.strategy" if folder else f"train.strategies.{name}"
        assert find_spec(f"moray.{module}")
