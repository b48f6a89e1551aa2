"""What is particular to images in stages that text and images share."""
