"""From documents to steps: tokenise, pack, store, order, batch."""
