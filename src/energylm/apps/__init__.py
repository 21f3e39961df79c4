"""Whole applications, each in a folder of its own: `serve` (completions over HTTP) and `study` (human evaluation); and
`harness`, our models in the lm-evaluation-harness (extra `energylm[harness]`).

A folder holds everything of its application: verbs, HTTP, work, storage, pages. What both need lies here: `security`
(tokens, headers, limits of bodies), `running` (listen and serve) and `pages` (templates and static files). They need
the extra `energylm[web]`, but for the declarations of their verbs.
"""

from importlib import import_module

from energylm.errors import extra


def needs_extra(*modules: str) -> None:
    """Say how to install what an application needs beyond the package itself, before anything of it is imported."""
    with extra("web"):
        for module in modules:
            import_module(module)
