rule choose:
    """The run of a sweep with the lowest validation loss, as a start for other runs."""
    input:
        records=lambda wildcards: of_sweep(wildcards, "train.json"),
        histories=lambda wildcards: of_sweep(wildcards, "history.jsonl"),
        models=lambda wildcards: of_sweep(wildcards, "model/manifest.json"),
    output:
        model="results/best/{sweep}/model/manifest.json",
        choice="results/best/{sweep}/choice.json",
    log:
        "logs/choose/{sweep}.log",
    wildcard_constraints:
        sweep=any_of(EXPERIMENT.sweeps),
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        code=lambda wildcards: code("choose", of=wildcards.sweep),
        cfg=lambda wildcards: {
            "runs": sorted(EXPERIMENT.sweeps[wildcards.sweep]),
            "sweep": wildcards.sweep,
        },
    message:
        "choose the best of {wildcards.sweep}"
    script:
        "../scripts/choose.py"
