"""One function per rule."""
