"""Who starts the workers: Ray Train, or PyTorch's elastic agent."""
