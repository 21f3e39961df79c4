"""Argmax over steps: the best sequence under a score, found without randomness.

`beam`               the k best prefixes at each step; the best one (greedy)
`continuous_beam`    the same with soft back-pointers, so that training sees the search
`span_beam`          the best spans of a text
`token_replacement`  single tokens exchanged along a gradient
"""
