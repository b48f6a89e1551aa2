"""The config: its schema, its checks, and what each stage depends on."""
