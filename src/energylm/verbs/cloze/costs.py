"""The work of scoring texts, of reranking lists, of learning from them and of fine-tuning, counted for `energylm plan`.

Lengths of texts come from their bytes. A masked language model reads a text once for each of its tokens; a causal one
reads what the hypotheses of a list share once. Where the texts or the sizes of a network are not here, None: not
counted. Heads of fine-tuned encoders are left out.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from energylm.bundles.known_models import is_energy_source, model_of_run
from energylm.config.cloze import SPANS, STDIN
from energylm.config.training import ValidationConfig
from energylm.data.text_files import read_texts
from energylm.errors import DataError
from energylm.files import read_json
from energylm.jobs.costs import TOKENS_AT_ONCE, Counted, Surroundings, count_texts, count_training, text_tokens
from energylm.models.compute import Network, Work, reading, resident_bytes
from energylm.registry import SCORERS

if TYPE_CHECKING:
    from energylm.data.nbest import NBest
    from energylm.verbs.cloze.finetune import Finetune
    from energylm.verbs.cloze.rerank import Rerank, TrainReranker
    from energylm.verbs.cloze.score import Score

CAUSAL, MASKED = "language-model", "masked-lm"
ENERGIES = ("electric", "energy")  # without an output layer over the vocabulary
MADE_BY = ("rerank-train", "energy-train")  # of the store's folders, those that hold energies
FRAME = 2  # special tokens around a text


def count_score(verb: "Score", around: Surroundings) -> Counted | None:
    if verb.source == STDIN or not Path(verb.source).is_file() or SCORERS.named(verb.model):
        return None
    counted = Counted()
    _score(counted, verb.model, [[text] for text in read_texts(Path(verb.source), field=verb.field)], around)
    return counted


def count_rerank(verb: "Rerank", around: Surroundings) -> Counted | None:
    from energylm.verbs.cloze.reranking import read_files

    named = {name for each in verb.all_sets for name in (each.lists, each.dev) if name is not None}
    if not all(Path(name).is_file() for name in named) or any(SCORERS.named(each.model) for each in verb.all_scorers):
        return None
    counted, files = Counted(), read_files(verb)
    if verb.scores:
        counted.notes.append("takes the scores that other steps keep")
        return counted
    for scorer in verb.all_scorers:
        for lists in files.values():
            texts = [_texts(of_list) for of_list in lists]
            _score(counted, scorer.model, texts, around, before=scorer.context)
    return counted


def count_reranker(verb: "TrainReranker", around: Surroundings) -> Counted | None:
    """An energy for each fold and one for all lists, or with dev lists that one alone; then every list that λ are tuned
    on is judged once, and read by the other scorers. A teacher reads some hypotheses of each list before."""
    from energylm.verbs.cloze.rerank_training import TAUGHT_OF_A_LIST, read_training_lists

    files = (*verb.lists, *verb.dev, *verb.references, *verb.dev_references)
    if not all(Path(name).is_file() for name in files):
        return None
    unmade = [name for name in verb.also if not Path(name).is_file()]
    verb = verb.model_copy(update={"also": tuple(name for name in verb.also if name not in unmade)})
    network, (train, dev, also) = around.network(verb.init), read_training_lists(verb)
    learnt, tuned = ([_texts(of_list) for of_list in lists] for lists in ([*also, *train], dev or train))
    counted = Counted()
    if unmade:
        counted.notes.append("lists that are not made yet are taken to be as long as the others")
    if verb.teacher:
        learnt = [texts[:TAUGHT_OF_A_LIST] for texts in learnt]
        _score(counted, verb.teacher, learnt, around, before=verb.context)
    hypotheses = fmean(min(len(texts), verb.hypotheses or len(texts)) for texts in learnt)
    length = fmean(_padded(texts, network) for texts in learnt)
    held_out = [0.0, *([len(train) / verb.folds] * (0 if dev else verb.folds))]  # from what all learn, and each fold
    for held in held_out:
        validated = round(verb.validation_share * (len(learnt) - held)) * hypotheses
        training = verb.training
        if not validated:
            training = training.model_copy(update={"validation": ValidationConfig(every_steps=None)})
        run = count_training(
            network, training, around, rows=hypotheses, length=length, predicted=0.0, validated=validated
        )
        for name, amount in run.quantities.items():
            counted.count(name, amount)
        counted.memory_bytes = max(counted.memory_bytes, run.memory_bytes)
        counted.disk_bytes += run.disk_bytes
    counted.notes += run.notes
    count_texts(counted, network, [_padded(texts, network) for texts in tuned for _ in texts], around)
    for scorer in verb.all_scorers:
        _score(counted, scorer.model, tuned, around, before=scorer.context)
    counted.product = network
    return counted


def count_finetuning(verb: "Finetune", around: Surroundings) -> Counted | None:
    from energylm.verbs.cloze.finetune_data import data_files

    try:
        files = data_files(verb)
    except DataError:
        return None
    if not all(path.is_file() for part in files for path in part):
        return None
    network = around.network(verb.init)
    train, judged = (_inputs(verb, part, network) for part in files)
    train, judged = train[: verb.train_examples], judged[: verb.evaluation_examples]
    training = verb.training_on(len(train), seed=verb.training.seed)
    counted = count_training(
        network,
        training,
        around,
        rows=1,
        length=fmean(train),
        predicted=0.0,
        validated=verb.validation_share * len(train),
    )
    count_texts(counted, network, judged, around)
    counted.quantities = {name: verb.seeds * amount for name, amount in counted.quantities.items()}
    counted.disk_bytes *= verb.seeds
    counted.product = network
    return counted


def _inputs(verb: "Finetune", files: Sequence[Path], network: Network) -> list[float]:
    """The tokens of each input: a sentence or a pair, or a window on a context with its question."""
    from energylm.data.sentence_tasks import read_examples
    from energylm.data.squad import read_squad

    most = verb.max_tokens or verb.about.tokens
    if verb.about.kind != SPANS:
        lengths = []
        for example in read_examples(verb.task, files):
            texts = [text for text in (example.first, example.second) if text is not None]
            lengths.append(min(float(most), 1 + sum(text_tokens(text, network) + 1 for text in texts)))
        return lengths
    windows: list[float] = []
    for question in (question for file in files for question in read_squad(file)):
        asked = min(verb.spans.question_tokens, text_tokens(question.question, network)) + 3
        left = text_tokens(question.context, network)
        while left > most - asked and most - asked > verb.spans.stride:
            windows.append(float(most))
            left -= verb.spans.stride
        windows.append(min(float(most), asked + left))
    return windows


def _score(
    counted: Counted, model: str, lists: Sequence[Sequence[str]], around: Surroundings, *, before: int = 0
) -> None:
    """What one scorer does with lists of texts, each after so many words that were heard `before` it; nothing to speak
    of where it is an energy without a network, such as `frequency:FILE`."""
    if is_energy_source(model):
        return
    network = around.network(str(model_of_run(model)) if model not in around.products else model)
    kind, predicts = _kind(model, network), True
    if kind == CAUSAL:
        heard = before * _word_tokens(lists, network) if before else 0.0
        lengths = [heard + _shared_tokens(texts, network) for texts in lists]
    else:
        lengths = [FRAME + text_tokens(text, network) for texts in lists for text in texts]
        predicts = kind not in ENERGIES
    if kind != MASKED:
        count_texts(counted, network, lengths, around, predicts=predicts)
    else:
        work = Work()
        for length in lengths:
            hidden = length - FRAME
            passes = hidden * length / TOKENS_AT_ONCE
            work += reading(network, rows=hidden, length=length, predicted=hidden, passes=passes)
            if not network.gated:  # after its attention, BERT's last layer goes on with the hidden tokens only
                after_attention = 2 * (network.width**2 + 2 * network.width * network.inner_width)
                work += Work(flops=-hidden * (length - 1) * after_attention)
        counted.add("reading", work * (1 / around.world))
    room = resident_bytes(network, tokens=TOKENS_AT_ONCE, length=max(lengths, default=1), predicted=256, learns=False)
    counted.memory_bytes = max(counted.memory_bytes, Counted().memory_bytes + room)


def _shared_tokens(texts: Sequence[str], network: Network) -> float:
    """Of the tree of prefixes of a list's texts: a word after the same words counts once."""
    words = [text.split() for text in texts]
    prefixes = {tuple(of_text[:end]) for of_text in words for end in range(1, len(of_text) + 1)}
    return text_tokens(" ".join(prefix[-1] for prefix in prefixes), network)


def _padded(texts: Sequence[str], network: Network) -> float:
    """Tokens of each of a list's texts, which are read side by side."""
    return FRAME + max((text_tokens(text, network) for text in texts), default=1.0)


def _word_tokens(lists: Iterable[Sequence[str]], network: Network) -> float:
    """Of one word with its space, on average over the first texts of lists."""
    words = " ".join(texts[0] for texts in lists if texts).split()
    return text_tokens(" ".join(words), network) / max(1, len(words))


def _texts(of_list: "NBest") -> list[str]:
    return [hypothesis.text for hypothesis in of_list.hypotheses if hypothesis.text.strip()]


def _kind(model: str, network: Network) -> str:
    """Which kind of scorer a model is: by the step that makes it, which its path in the store names, or its folder."""
    made = [part.removeprefix("pretrain-") for part in Path(model).parts if part.startswith("pretrain-")]
    if made:
        return MASKED if made[0] == "mlm" else made[0]
    if not set(MADE_BY).isdisjoint(Path(model).parts):
        return ENERGIES[1]
    manifest = model_of_run(model) / "energylm.json"
    if manifest.is_file():
        return str(read_json(manifest)["kind"])
    return CAUSAL if network.kind in ("causal", "convolution") else MASKED
