rule push_run:
    """A run's model in its repository of the Hub; the receipt."""
    input:
        model="results/runs/{run}/model/manifest.json",
        card="results/runs/{run}/README.md",
    output:
        "results/runs/{run}/pushed.json",
    log:
        "logs/push/{run}.log",
    wildcard_constraints:
        run=any_of(PUSHED),
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        code=lambda wildcards: code("push", of=wildcards.run),
        cfg=lambda wildcards: plan.push_config(EXPERIMENT, wildcards.run),
    message:
        "push {wildcards.run}"
    script:
        "../scripts/push.py"
