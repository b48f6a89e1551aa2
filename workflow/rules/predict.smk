rule predict:
    """Predictions for a few test images, before and after training, and a figure of nine."""
    input:
        base=start_manifest,
        tuned="results/runs/{run}/model/manifest.json",
        store=prepared_manifest,
    output:
        samples=report(
            "results/runs/{run}/samples.jsonl",
            caption="../report/samples.rst",
            category="Samples",
            labels={"run": "{run}"},
        ),
        settings="results/runs/{run}/generation.json",
        png="results/runs/{run}/predictions.png",
        svg=report(
            "results/runs/{run}/predictions.svg",
            caption="../report/predictions.rst",
            category="Predictions",
            labels={"run": "{run}"},
        ),
    log:
        "logs/predict/{run}.log",
    benchmark:
        "results/benchmarks/predict/{run}.tsv"
    wildcard_constraints:
        run=any_of(runs_of("images")),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(wildcards.run, "generate")
    resources:
        **needs(minutes=240, workers="generate"),
    params:
        code=lambda wildcards: code("predict", "images", of=wildcards.run),
        cfg=lambda wildcards: plan.predict_config(EXPERIMENT, wildcards.run),
        execution=execution_of("generate"),
        # Batches that another version has computed don't count. It isn't compared with the last
        # execution, because it takes `input`.
        version=lambda wildcards, input: version_of("predict", "images"),
    message:
        "predict {wildcards.run}"
    script:
        "../scripts/predict.py"
