"""TensorBoard, as a tracker of runs."""
