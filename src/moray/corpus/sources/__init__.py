"""Where documents come from, a module a source."""
