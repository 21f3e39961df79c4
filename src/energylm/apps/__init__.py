"""Whole applications, each in a folder of its own: `serve` (completions over HTTP) and `study` (human evaluation).

A folder holds everything of its application: verbs, HTTP, work, storage, pages. What both need lies here: `security`
(tokens, headers, limits of bodies), `running` (listen and serve) and `pages` (templates and static files). They need
the extra `energylm[web]`, but for the declarations of their verbs.
"""
