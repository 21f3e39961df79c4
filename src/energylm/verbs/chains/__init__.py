"""Masked models as energies: chains, translators by masks, exact studies of their training."""
