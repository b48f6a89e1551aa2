"""The config's schema: the only place that defines a key, its default and its meaning."""
