"""Memory of a worker by strategy: what is held, against the formula that predicts it."""
