"""moray: fine-tune language models with Snakemake and Ray Train."""
