"""Token classification: the words of a text with a tag each, and the loss of their first tokens."""
