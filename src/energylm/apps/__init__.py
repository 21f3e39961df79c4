"""Whole applications, each in a folder of its own: `serve` (completions over HTTP) and `study` (human evaluation).

A folder holds everything of its application: verbs, HTTP, work, storage, pages. What both need lies here: `security`
(tokens, headers, limits of bodies), `running` (listen and serve) and `pages` (templates and static files). They need
the extra `energylm[web]`, but for the declarations of their verbs.
"""

from energylm.errors import ConfigError


def needs_extra(*modules: str) -> None:
    """Say how to install what an application needs beyond the package itself, if it is not there."""
    from importlib.util import find_spec

    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        raise ConfigError(f"this command needs {', '.join(absent)}: pip install 'energylm[web]'")
