"""Taggers and translators, trained for the search that decodes them."""
