"""The work of drawing continuations and of reading texts: negatives, perplexity, cells of a grid."""

from pathlib import Path

from energylm.config.grid import DiscriminationConfig, LikelihoodConfig
from energylm.config.negatives import NegativesConfig
from energylm.config.perplexity import PerplexityConfig
from energylm.models.workload import Network, Work, drawing, reading, resident_bytes
from energylm.pipelines.plan_work import TOKENS_AT_ONCE, Counted, Surroundings, Texts, passes_over
from energylm.samplers.continuations import LOGITS_BYTES, MIN_ROWS


def count_negatives(config: NegativesConfig, around: Surroundings) -> Counted:
    corpus, network = around.corpus(config.corpus), around.network(config.lm)
    windows = corpus.tokens[config.split] / (config.stride or config.length)
    contexts = min(config.contexts or windows, windows)
    given = sum(config.context_lengths) / len(config.context_lengths)
    own = contexts / around.world
    together = min(config.block_contexts / len(config.context_lengths), own) * config.k  # that travel in one batch
    rows = min(_draw_rows(network), together)
    counted = Counted(product=Texts(contexts, config.k, config.length))
    new = config.length - given
    counted.add("drawing", drawing(network, contexts=own, copies=config.k, given=given, new=new, rows=rows))
    counted.count("shards", max(1.0, own / config.block_contexts))
    counted.memory_bytes += _drawing_bytes(network, rows=rows, length=config.length, new=new)
    counted.disk_bytes = contexts * config.k * (2 * new + 16)
    return counted


def _draw_rows(network: Network) -> int:
    """Continuations that are drawn at a time (`samplers.continuations`)."""
    return max(MIN_ROWS, LOGITS_BYTES // (4 * network.vocabulary_size))


def _drawing_bytes(network: Network, *, rows: float, length: int, new: float) -> float:
    """Weights, activations, and the keys and values of what is being written."""
    keys_and_values = 4 * 2 * network.layers * network.width * rows * new
    return keys_and_values + resident_bytes(network, tokens=rows, length=length, predicted=rows, learns=False)


def count_perplexity(config: PerplexityConfig, around: Surroundings) -> Counted:
    base = around.network(config.language_model)
    windows = config.contexts / around.world
    new = config.length - config.prefix
    counted = Counted()
    for name in filter(None, (config.language_model, config.ralm, config.balm)):
        network = around.network(name)
        tokens = windows * config.length
        work = reading(network, rows=windows, length=config.length, predicted=tokens, passes=passes_over(tokens))
        counted.add("reading", work)
        if network.read_only is not None:
            work = reading(
                network.read_only, rows=windows, length=config.length, predicted=tokens, passes=passes_over(tokens)
            )
            counted.add("reading", work)
    rows = _draw_rows(base)
    counted.memory_bytes += _drawing_bytes(base, rows=rows, length=config.length, new=new)
    if config.energy is None:
        return counted
    energy = around.network(config.energy)
    _joint(counted, base, energy, contexts=windows, copies=config.n, given=config.prefix, new=new)
    if config.by_position:
        for position in range(new):
            _joint(
                counted,
                base,
                energy,
                contexts=windows,
                copies=config.position_samples,
                given=config.prefix + position,
                new=new - position,
            )
        every_last = windows * base.vocabulary_size  # the last token is enumerated
        counted.add("reading", _judged(energy, texts=every_last, contexts=windows, given=config.length - 1, new=1))
    counted.memory_bytes += resident_bytes(
        energy, tokens=TOKENS_AT_ONCE, length=config.length, predicted=0, learns=False
    )
    return counted


def _joint(
    counted: Counted, base: Network, energy: Network, *, contexts: float, copies: int, given: int, new: int
) -> None:
    """Draws from the base, and the energy of each."""
    rows = min(_draw_rows(base), contexts * copies)
    counted.add("drawing", drawing(base, contexts=contexts, copies=copies, given=given, new=new, rows=rows))
    counted.add("reading", _judged(energy, texts=contexts * copies, contexts=contexts, given=given, new=new))


def _judged(energy: Network, *, texts: float, contexts: float, given: float, new: float) -> Work:
    """A causal energy reads a context once for all its continuations, any other reads whole texts."""
    if energy.kind != "causal":
        tokens = texts * (given + new)
        return reading(energy, rows=texts, length=given + new, passes=passes_over(tokens))
    work = reading(energy, rows=contexts, length=max(given, 1), passes=passes_over(contexts * given))
    suffixes = reading(energy, rows=texts, length=new, passes=passes_over(texts * new))
    attention = texts * new * energy.layers * 4 * energy.width * given
    return work + suffixes + Work(flops=attention, bytes=texts * new * energy.layers * energy.heads * given * 16)


def count_discrimination(config: DiscriminationConfig, around: Surroundings) -> Counted:
    energy, counted = around.network(config.energy), Counted()
    for name in config.negatives:
        texts = around.texts(name)
        rows = texts.contexts * (1 + texts.k) / around.world
        work = reading(
            energy,
            rows=rows,
            length=texts.length,
            predicted=rows * texts.length if _is_likelihood(config.energy) else 0,
            passes=passes_over(rows * texts.length),
        )
        counted.add("reading", work)
    counted.count("windows", sum(around.texts(name).contexts for name in (*config.negatives, *config.trained_on)))
    counted.memory_bytes += resident_bytes(energy, tokens=TOKENS_AT_ONCE, length=64, predicted=0, learns=False)
    return counted


def _is_likelihood(place: str) -> bool:
    return "likelihood" in Path(place).parts  # where the artefact store puts what a step `likelihood` made


def count_likelihood(config: LikelihoodConfig, around: Surroundings) -> Counted:
    network, counted = around.network(config.lm), Counted()
    for name in config.negatives:
        texts = around.texts(name)
        rows = texts.contexts * (1 + texts.k) / around.world
        tokens = rows * texts.length
        work = reading(network, rows=rows, length=texts.length, predicted=tokens, passes=passes_over(tokens))
        counted.add("reading", work)
    counted.product = network
    return counted
