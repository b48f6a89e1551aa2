rule track_run:
    """A run in its trackers, with its evaluation, samples and digests."""
    input:
        train="results/runs/{run}/train.json",
        history="results/runs/{run}/history.jsonl",
        scores="results/runs/{run}/eval.json",
        samples=samples_of,
        benchmarks=benchmarks_of,
        model="results/runs/{run}/model/manifest.json",
    output:
        "results/runs/{run}/tracked.json",
    log:
        "logs/track/{run}.log",
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        code=lambda wildcards: code("track", of=wildcards.run),
        cfg=lambda wildcards: {"trackers": EXPERIMENT.runs[wildcards.run].tracking},
    message:
        "track {wildcards.run}"
    script:
        "../scripts/track.py"
