"""Fine-tuning data: rows of conversations with media become streams to learn from."""
