"""Rule download."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.download import download

    download(
        output=Path(snakemake.output.index).parent,
        cfg=snakemake.params.cfg,
        files={split: list(files) for split, files in snakemake.input.items()},
        proofs=snakemake.params.proofs,
        code=snakemake.params.version,
        execution=snakemake.params.execution,
    )
