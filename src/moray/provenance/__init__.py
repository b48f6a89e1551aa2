"""How a result came about: digests of bytes, manifests of folders, versions of libraries."""
