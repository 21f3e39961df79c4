"""Torch-free configurations (pydantic, frozen, closed). The description of a field is its only documentation."""

from energylm.config.base import Config, load_config

__all__ = ["Config", "load_config"]
