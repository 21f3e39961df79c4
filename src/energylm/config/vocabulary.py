"""The words that every face shares, Python and verbs alike, and the default of each, written once.

    n                continuations of a context that are drawn, to choose among or to estimate from
    top_k, top_p, temperature      of the proposal (`config.sampling.Truncation`): the model as it is
    max_new_tokens   tokens of a continuation
    prefix_tokens    of a text, given and not scored
    seed             of every random number
    device, dtype, batch_tokens    where and how a network runs; None: what suits the machine

A test walks all signatures and fields and fails where a word has another default. A few have two meanings, hence two
defaults:

    n                1 where every draw is handed over and none is chosen (`LanguageModel.sample`, `lm sample`)
    max_new_tokens   None where texts are measured or read again: each has the length that it has; a number is a cap
    prefix_tokens    120 of windows of 160 where a corpus is cut into what is given and what is written (Deng et al.
                     2020, §5.1): so energies are trained, and so verbs measure them
    beta             10 for similarities, which lie between −1 and 1; 1 for scores in nats

Relations  `config.sampling` and `config.texts` are made of these.
"""

N = 256
N_TEXTS = 1
MAX_NEW_TOKENS = 40
PREFIX_TOKENS = 0
WINDOW_TOKENS, WINDOW_PREFIX_TOKENS = 160, 120
BETA, SIMILARITY_BETA = 1.0, 10.0
RECALL_STRENGTH = 1000.0  # words: of 200, 1,000, 3,000 and 10,000 it served n-best lists of read books best

# What is taken where no model is named: the smallest that write and compare English, both known by name.
LANGUAGE_MODEL, ENCODER = "smollm2-135m", "minilm-l6"
