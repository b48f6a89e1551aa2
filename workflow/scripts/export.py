"""Rule export."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.export import export

    export(
        start=Path(snakemake.input.start).parent,
        train=Path(snakemake.input.train),
        history=Path(snakemake.input.history),
        sources=[Path(source) for source in snakemake.input.sources],
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
        modality=snakemake.params.modality,
        proofs=snakemake.params.proofs,
    )
