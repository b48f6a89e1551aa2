"""Image classification: labelled images to pixels, and the loss of their labels."""
