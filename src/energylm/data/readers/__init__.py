"""Readers: each yields `Document`s lazily; what cannot be read is an error that names file, place and cure."""
