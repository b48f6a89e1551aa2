rule generate_run:
    """Prompts of the test split, continued before and after."""
    input:
        base=start_manifest,
        base_dependencies=start_dependencies,
        tuned="results/runs/{run}/model/manifest.json",
        index=lambda wildcards: f"results/datasets/{EXPERIMENT.runs[wildcards.run].dataset}/dataset.json",
        rows=lambda wildcards: ancient(
            f"results/datasets/{EXPERIMENT.runs[wildcards.run].dataset}/test.parquet"
        ),
    output:
        "results/runs/{run}/samples.jsonl",
    log:
        "logs/generate/{run}.log",
    benchmark:
        "results/benchmarks/generate/{run}.tsv"
    conda:
        "../../envs/environment.yaml"
    threads: 8
    params:
        code=code("generate"),
        cfg=lambda wildcards: plan.generate_config(EXPERIMENT, wildcards.run),
    message:
        "generate {wildcards.run}"
    script:
        "../scripts/generate.py"
