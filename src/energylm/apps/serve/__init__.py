"""`energylm serve`: OpenAI-style completions by joint sampling over HTTP; scores, reranking, detection; a page."""
