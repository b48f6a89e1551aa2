"""Rule track_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.track import track

    track(
        train=Path(snakemake.input.train),
        history=Path(snakemake.input.history),
        scores=Path(snakemake.input.scores),
        samples=[Path(file) for file in snakemake.input.samples],
        benchmarks=[Path(file) for file in snakemake.input.benchmarks],
        model=Path(snakemake.input.model).parent,
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
    )
