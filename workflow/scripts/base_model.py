"""Rule base_model."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.base_model import base_model

    cfg = snakemake.params.cfg
    needs_dataset = cfg["source"] == "scratch" or "classes_of" in cfg
    base_model(
        output=Path(snakemake.output[0]).parent,
        cfg=cfg,
        dataset=Path(snakemake.input.files[0]).parent if needs_dataset else None,
        proofs=snakemake.params.proofs,
        modality=snakemake.params.modality,
    )
