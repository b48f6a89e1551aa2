"""Sources of text, each a module that `sources.opened` imports by the name in the config."""
