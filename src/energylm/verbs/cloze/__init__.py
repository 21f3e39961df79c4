"""Cloze models: pretraining them, scoring and reranking with them, judging and fine-tuning them."""
