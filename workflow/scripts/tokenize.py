"""Rule tokenize."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.tasks.language.tokenize import tokenize

    tokenize(
        dataset=Path(snakemake.input.dataset).parent,
        model=Path(snakemake.input.model).parent,
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
        source=snakemake.params.source,
        files=snakemake.params.files,
        proofs=snakemake.params.proofs,
        code=snakemake.params.version,
        execution=snakemake.params.execution,
    )
