"""Rule download_images."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.download_images import download_images

    download_images(
        output=Path(snakemake.output.index).parent,
        cfg=snakemake.params.cfg,
        files={split: list(files) for split, files in snakemake.input.items()},
    )
