"""What each stage's result depends on and where it is stored, for the workflow's rules.

Each function that ends in `_config` returns the param `cfg` of a rule: builtins with sorted keys,
and only the keys that the result depends on, because the workflow re-runs a stage when its `cfg`
prints differently.
"""

from moray.config.plan.data import (
    SPLITS,
    dataset_config,
    dataset_files,
    modality,
    modality_of_dataset,
    modality_of_model,
    model_config,
    model_files,
    source_of,
    task,
    without_braces,
)
from moray.config.plan.evaluation import (
    Stage,
    evaluate_config,
    evaluation_execution,
    evaluation_gpus,
    evaluation_threads,
    generate_config,
    interval_config,
    predict_config,
)
from moray.config.plan.handover import (
    export_config,
    gguf_config,
    push_config,
)
from moray.config.plan.rows import (
    chat_template,
    exports_adapter,
    prepared_folders,
    reference_config,
    reference_name,
    start_dependencies,
    start_folder,
    store_config,
    store_folders,
    store_name,
)
from moray.config.plan.training import (
    runs_here,
    train_config,
    train_execution,
    train_gpus,
    train_threads,
)

__all__ = [
    "SPLITS",
    "Stage",
    "chat_template",
    "dataset_config",
    "dataset_files",
    "evaluate_config",
    "evaluation_execution",
    "evaluation_gpus",
    "evaluation_threads",
    "export_config",
    "exports_adapter",
    "generate_config",
    "gguf_config",
    "interval_config",
    "modality",
    "modality_of_dataset",
    "modality_of_model",
    "model_config",
    "model_files",
    "predict_config",
    "prepared_folders",
    "push_config",
    "reference_config",
    "reference_name",
    "runs_here",
    "source_of",
    "start_dependencies",
    "start_folder",
    "store_config",
    "store_folders",
    "store_name",
    "task",
    "train_config",
    "train_execution",
    "train_gpus",
    "train_threads",
    "without_braces",
]
