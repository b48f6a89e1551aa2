rule export:
    """A run's last checkpoint, or its best, as a Hugging Face folder."""
    input:
        start=start_manifest,
        start_dependencies=start_dependencies,
        train="results/runs/{run}/train.json",
        sources=lineage_sources,
        history="results/runs/{run}/history.jsonl",
    output:
        "results/runs/{run}/model/manifest.json",
    log:
        "logs/export/{run}.log",
    benchmark:
        "results/benchmarks/export/{run}.tsv"
    wildcard_constraints:
        run=any_of(EXPERIMENT.runs),
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        code=lambda wildcards: code(
            "export", plan.modality(EXPERIMENT, wildcards.run), of=wildcards.run
        ),
        cfg=lambda wildcards: plan.export_config(EXPERIMENT, wildcards.run),
        # Not compared with the last execution, because they take `input`.
        modality=lambda wildcards, input: plan.modality(EXPERIMENT, wildcards.run),
        proofs=lambda wildcards, input: EXPERIMENT.runs[wildcards.run].proofs,
    message:
        "export {wildcards.run}"
    script:
        "../scripts/export.py"
