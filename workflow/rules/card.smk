rule card:
    """A run's model card with its evaluation and lineage."""
    input:
        model="results/runs/{run}/model/manifest.json",
        scores="results/runs/{run}/eval.json",
        benchmarks=benchmarks_of,
    output:
        "results/runs/{run}/README.md",
    log:
        "logs/card/{run}.log",
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        code=lambda wildcards: code("card", of=wildcards.run),
        cfg=lambda wildcards: {
            "datasets": list(EXPERIMENT.runs[wildcards.run].datasets),
            "place": place_of(wildcards.run),
            "run": wildcards.run,
        },
    message:
        "card {wildcards.run}"
    script:
        "../scripts/card.py"
