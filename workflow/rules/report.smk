rule report:
    """A page about all runs, in one file."""
    input:
        scores=expand("results/runs/{run}/eval.json", run=EXPERIMENT.runs),
        benchmarks=expand("results/runs/{run}/benchmarks.json", run=BENCHMARKED),
        samples=expand("results/runs/{run}/samples.jsonl", run=SAMPLED),
        cards=expand("results/runs/{run}/README.md", run=EXPERIMENT.runs),
    output:
        report(
            "results/report.html",
            caption="../report/report.rst",
            category="Report",
        ),
    log:
        "logs/report.log",
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        code=code("report"),
        cfg={
            "report": EXPERIMENT.report.model_dump(),
            "runs": list(EXPERIMENT.runs),
        },
    message:
        "report"
    script:
        "../scripts/report.py"
