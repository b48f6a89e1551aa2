rule evaluate:
    """Likelihood of the test split, before and after."""
    input:
        base=start_manifest,
        base_dependencies=start_dependencies,
        tuned="results/runs/{run}/model/manifest.json",
        tokens=tokens_manifest,
    output:
        "results/runs/{run}/eval.json",
    log:
        "logs/evaluate/{run}.log",
    benchmark:
        "results/benchmarks/evaluate/{run}.tsv"
    conda:
        "../../envs/environment.yaml"
    threads: 8
    params:
        code=code("evaluate"),
        cfg=lambda wildcards: plan.evaluate_config(EXPERIMENT, wildcards.run),
        execution=lambda wildcards, input: plan.evaluate_execution(
            EXPERIMENT, wildcards.run
        ),
    message:
        "evaluate {wildcards.run}"
    script:
        "../scripts/evaluate.py"
