"""Who starts the workers: Ray Train, or PyTorch's elastic agent. The loop is the same."""
