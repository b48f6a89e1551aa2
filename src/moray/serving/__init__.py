"""Models for programs that serve them."""
