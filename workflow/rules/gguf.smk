CONVERTED = [run for run, section in EXPERIMENT.runs.items() if section.gguf]


rule gguf:
    """Every run that asks for it, as GGUF files with a Modelfile for Ollama."""
    input:
        expand("results/runs/{run}/gguf/manifest.json", run=CONVERTED),
    message:
        "every run has its GGUF files"


rule gguf_run:
    """A run's model for llama.cpp and Ollama."""
    input:
        model="results/runs/{run}/model/manifest.json",
    output:
        "results/runs/{run}/gguf/manifest.json",
    log:
        "logs/gguf/{run}.log",
    benchmark:
        "results/benchmarks/gguf/{run}.tsv"
    wildcard_constraints:
        run=any_of(CONVERTED),
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        code=lambda wildcards: code("gguf", of=wildcards.run),
        cfg=lambda wildcards: plan.gguf_config(EXPERIMENT, wildcards.run),
    message:
        "gguf {wildcards.run}"
    script:
        "../scripts/gguf.py"
