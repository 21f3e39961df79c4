"""The work of drawing continuations, of reading them and of learning from them, counted for `energylm plan`."""

from typing import TYPE_CHECKING

from energylm.jobs.costs import TOKENS_AT_ONCE, Counted, GeneratedTexts, Surroundings, count_training, passes_over
from energylm.models.compute import Network, Work, drawing, reading, resident_bytes
from energylm.samplers.continuations import LOGITS_BYTES, MIN_ROWS

if TYPE_CHECKING:
    from energylm.verbs.joint.analyses import JointAnalysis, Repetitions, SampledText
    from energylm.verbs.joint.negatives import MakeNegatives
    from energylm.verbs.joint.perplexity import Perplexity
    from energylm.verbs.joint.train_energy import TrainEnergy


def count_negatives(verb: "MakeNegatives", around: Surroundings) -> Counted:
    corpus, network = around.corpus(verb.corpus), around.network(verb.language_model)
    windows = corpus.tokens[verb.split] / (verb.stride or verb.length)
    contexts = min(verb.contexts or windows, windows)
    given = sum(verb.prefix_tokens) / len(verb.prefix_tokens)
    own = contexts / around.world
    together = min(verb.block_contexts / len(verb.prefix_tokens), own) * verb.k  # that travel in one batch
    rows = min(_draw_rows(network), together)
    counted = Counted(product=GeneratedTexts(contexts, verb.k, verb.length))
    new = verb.length - given
    counted.add("drawing", drawing(network, contexts=own, copies=verb.k, given=given, new=new, rows=rows))
    counted.count("shards", max(1.0, own / verb.block_contexts))
    counted.memory_bytes += _drawing_bytes(network, rows=rows, length=verb.length, new=new)
    counted.disk_bytes = contexts * verb.k * (2 * new + 16)
    return counted


def _draw_rows(network: Network) -> int:
    """Continuations that are drawn at a time (`samplers.continuations`)."""
    return max(MIN_ROWS, LOGITS_BYTES // (4 * network.vocabulary_size))


def _drawing_bytes(network: Network, *, rows: float, length: int, new: float) -> float:
    """Weights, activations, and the keys and values of what is being written."""
    keys_and_values = 4 * 2 * network.layers * network.width * rows * new
    return keys_and_values + resident_bytes(network, tokens=rows, length=length, predicted=rows, learns=False)


def count_perplexity(verb: "Perplexity", around: Surroundings) -> Counted:
    base = around.network(verb.language_model)
    windows, given = verb.contexts / around.world, verb.prefix_tokens
    new = verb.length - given
    counted = Counted()
    for name in filter(None, (verb.language_model, verb.ralm, verb.balm)):
        network = around.network(name)
        for part in filter(None, (network, network.read_only)):
            counted.add("reading", _scored(part, windows=windows, length=verb.length))
    counted.memory_bytes += _drawing_bytes(base, rows=_draw_rows(base), length=verb.length, new=new)
    if verb.energy is None:
        return counted
    energy = around.network(verb.energy)
    _joint(counted, base, energy, contexts=windows, copies=verb.n, given=given, new=new)
    if verb.by_position:
        pools = {"contexts": windows, "copies": verb.position_samples}
        for position in range(new):
            _joint(counted, base, energy, **pools, given=given + position, new=new - position)
        every_last = windows * base.vocabulary_size  # the last token is enumerated
        counted.add("reading", _judged(energy, texts=every_last, contexts=windows, given=verb.length - 1, new=1))
    counted.memory_bytes += resident_bytes(energy, tokens=TOKENS_AT_ONCE, length=verb.length, predicted=0, learns=False)
    return counted


def count_sampled_text(verb: "SampledText", around: Surroundings) -> Counted:
    """A text of the base for each context; a pool to keep one from, another for log Z; and the real texts, which the
    base reads twice."""
    counted, base, energy = _base_samples(verb, around)
    for _ in range(2):
        _joint(
            counted, base, energy, contexts=verb.contexts, copies=verb.n, given=verb.prefix_tokens, new=verb.new_tokens
        )
        counted.add("reading", _scored(base, windows=verb.contexts, length=verb.length))
    real = _judged(energy, texts=verb.contexts, contexts=verb.contexts, given=verb.prefix_tokens, new=verb.new_tokens)
    counted.add("reading", real)
    return counted


def count_repetitions(verb: "Repetitions", around: Surroundings) -> Counted:
    """A text of the base for each context; n completions of each candidate, where a repetition stands: in the middle
    of what is new, on average."""
    counted, base, energy = _base_samples(verb, around)
    given = verb.prefix_tokens + verb.new_tokens // 2
    candidates = verb.repetitions * min(verb.candidates, base.vocabulary_size)
    _joint(counted, base, energy, contexts=candidates, copies=verb.n, given=given, new=max(1, verb.length - given - 1))
    return counted


def _base_samples(verb: "JointAnalysis", around: Surroundings) -> tuple[Counted, Network, Network]:
    """What every analysis begins with, and the networks of base and energy. One process does it all."""
    base, energy, counted = around.network(verb.language_model), around.network(verb.energy), Counted()
    rows, new = min(_draw_rows(base), verb.contexts), verb.new_tokens
    drawn = drawing(base, contexts=verb.contexts, copies=1, given=verb.prefix_tokens, new=new, rows=rows)
    counted.add("drawing", drawn)
    counted.memory_bytes += _drawing_bytes(base, rows=_draw_rows(base), length=verb.length, new=new)
    counted.memory_bytes += resident_bytes(energy, tokens=TOKENS_AT_ONCE, length=verb.length, predicted=0, learns=False)
    return counted, base, energy


def count_energy(verb: "TrainEnergy", around: Surroundings) -> Counted:
    corpus = around.corpus(verb.corpus[0])
    network = around.network(verb.init, vocabulary_size=corpus.vocabulary_size, overrides=verb.network)
    sources = [around.texts(name) for name in verb.negatives]
    length = max(source.length for source in sources)
    contexts = sum(source.contexts for source in sources)
    held_out = sum(around.texts(name).contexts for name in verb.validation or ())
    held_out = held_out or verb.validation_fraction * contexts
    held_out = min(held_out, verb.validation_contexts or held_out)
    validated = held_out / (2 if verb.calibrate else 1) * (1 + verb.validation_negatives)
    counted = count_training(
        network,
        verb.training,
        around,
        rows=1 + verb.negatives_per_context,
        length=length,
        predicted=0.0,
        validated=validated,
    )
    texts = held_out * (1 + verb.validation_negatives)  # calibration and report at the end
    counted.add("reading", reading(network, rows=texts, length=length, passes=passes_over(texts * length)))
    counted.product = network
    return counted


def count_completions(
    counted: Counted, language_model: str, energy: str | None, around: Surroundings, *, contexts: int, copies: int,
    given: int, new: int,
) -> None:  # fmt: skip
    """A text of the base for each context, or one kept of `copies` by an energy."""
    base = around.network(language_model)
    if energy is not None:
        _joint(counted, base, around.network(energy), contexts=contexts, copies=copies, given=given, new=new)
        return
    rows = min(_draw_rows(base), contexts)
    counted.add("drawing", drawing(base, contexts=contexts, copies=1, given=given, new=new, rows=rows))


def _joint(
    counted: Counted, base: Network, energy: Network, *, contexts: float, copies: float, given: int, new: int
) -> None:
    """Draws from the base, and the energy of each."""
    rows = min(_draw_rows(base), contexts * copies)
    counted.add("drawing", drawing(base, contexts=contexts, copies=copies, given=given, new=new, rows=rows))
    counted.add("reading", _judged(energy, texts=contexts * copies, contexts=contexts, given=given, new=new))


def _scored(network: Network, *, windows: float, length: int) -> Work:
    """Every token of windows, predicted."""
    tokens = windows * length
    return reading(network, rows=windows, length=length, predicted=tokens, passes=passes_over(tokens))


def _judged(energy: Network, *, texts: float, contexts: float, given: float, new: float) -> Work:
    """A causal energy reads a context once for all its continuations, any other reads whole texts."""
    if energy.kind != "causal":
        tokens = texts * (given + new)
        return reading(energy, rows=texts, length=given + new, passes=passes_over(tokens))
    work = reading(energy, rows=contexts, length=max(given, 1), passes=passes_over(contexts * given))
    suffixes = reading(energy, rows=texts, length=new, passes=passes_over(texts * new))
    attention = texts * new * energy.layers * 4 * energy.width * given
    return work + suffixes + Work(flops=attention, bytes=texts * new * energy.layers * energy.heads * given * 16)
