"""What workers are: where one stands, what they send each other, where Ray is."""
