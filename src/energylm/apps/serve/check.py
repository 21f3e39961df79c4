"""What `energylm serve --dry-run` does. Apart from `serve`, because it needs no model and hence no torch."""

from energylm.apps.serve.verb import ServeConfig
from energylm.bundles.known_models import locate


def check_inputs(config: ServeConfig) -> str:
    """Find the models without loading them; what would be served, in words."""
    parts = [
        f"{what} {locate(name)}"
        for what, name in (
            ("the language model", config.language_model),
            ("the energy", config.energy),
            ("the scorer", config.scorer),
            ("the detector", config.detector),
        )
        if name is not None
    ]
    if config.upstream is not None:
        parts.append(f"proposals of {config.upstream}")
    return f"would serve {', '.join(parts)}"
