"""Moved to `energylm.tables`; this name goes with the rebuild of the upper rooms."""

from energylm.tables import Cell, Table, format_cell, to_markdown, to_rich

__all__ = ["Cell", "Table", "format_cell", "to_markdown", "to_rich"]
