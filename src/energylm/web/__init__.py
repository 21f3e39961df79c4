"""HTTP → pipeline: the server (`serve_app`), the human study (`study_app`) and the pages. No arithmetic here.

Only `cli` and `benchmarks` import this room, inside functions: it needs the extra `energylm[web]`.
"""
