rule preview:
    """A few documents of every run's tokens; trained tokens are between ⟦ and ⟧."""
    input:
        expand("results/tokens/{store}/manifest.json", store=stores_of("text")),
    log:
        "logs/preview.log",
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(),
    params:
        texts=expand("results/tokens/{store}/preview.txt", store=stores_of("text")),
    message:
        "trained tokens are between ⟦ and ⟧"
    shell:
        'for text in {params.texts:q}; do echo "$text"; cat "$text"; done 2> {log}'
