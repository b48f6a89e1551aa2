"""Sources of text, each a module that is imported by its name in the config."""
