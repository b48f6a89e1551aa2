"""From documents to training steps: tokenise, pack, store, order, batch."""
