"""Argmax over steps: the best sequence under a score, found without randomness.

`greedy`             the best symbol at each step
`beam`               the k best prefixes at each step
`continuous_beam`    the same with soft back-pointers, so that training sees the search
`back_pointers`      from who-followed-whom to sequences
`token_replacement`  single tokens exchanged along a gradient
"""
