"""The provenance of results: digests, manifests of folders, versions of libraries."""
