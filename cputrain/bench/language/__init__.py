"""Fine-tuning of language models of transformers: under plain python, and under a launch."""
