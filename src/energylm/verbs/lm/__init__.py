"""Verbs of language models: train, score, sample."""
