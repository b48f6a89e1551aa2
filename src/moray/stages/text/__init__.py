"""What is particular to text in stages that text and images share."""
