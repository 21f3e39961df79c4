"""Language model and energy together: negatives, energies, perplexity, generation, analyses."""
