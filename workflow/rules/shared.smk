"""What runs share besides their tokens: references, and what teachers predict."""

REFERENCES = {
    plan.reference_name(EXPERIMENT, run): run
    for run in EXPERIMENT.runs
    if plan.has_reference(EXPERIMENT, run)
}


def reference_run(wildcards):
    """Wildcards of the first run that uses a reference."""
    return SimpleNamespace(run=REFERENCES[wildcards.reference])


# By the name of a store: the first run that uses it, and its dataset.
TAUGHT = {
    name: (run, dataset)
    for run in reversed(EXPERIMENT.runs)
    for dataset, name in plan.taught_stores(EXPERIMENT, run).items()
}


def taught_run(wildcards):
    run, _ = TAUGHT[wildcards.taught]
    return run


def tokens_to_teach(wildcards):
    """The tokens of the run's dataset."""
    run, dataset = TAUGHT[wildcards.taught]
    return f"results/tokens/{plan.store_name(EXPERIMENT, run, dataset)}/manifest.json"


def teacher_manifests(wildcards):
    """That of a run's teacher, if it has one."""
    section = EXPERIMENT.runs[wildcards.run].distillation
    return [f"{plan.folder_of(section.teacher)}/manifest.json"] if section else []
