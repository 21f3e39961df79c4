"""Verbs that prepare: corpora of tokens, and known small models."""
