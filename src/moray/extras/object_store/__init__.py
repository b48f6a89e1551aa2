"""The state of runs on S3 and Google Cloud Storage, for workers without a shared folder."""
