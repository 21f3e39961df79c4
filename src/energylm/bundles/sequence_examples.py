"""Files of a sequence task → examples → ids; and how a task's outputs are judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.config.seq2seq import ENTITIES, REFUSE, TAGS, TRANSLATION, TaskName
from energylm.data.sequence_pairs import SequencePairs, read_parallel
from energylm.data.tagging import Tagged, read_composite_tags, read_entities, refuse_unseen_tags
from energylm.errors import DataError
from energylm.estimators.sequence_scores import SequenceScores, entity_scores, tag_scores, translation_scores
from energylm.objectives.cross_entropy import IGNORED


@dataclass(frozen=True)
class Examples:
    """Sentences of a task: words and gold tags, or sources and references. `files` is where they came from."""

    task: TaskName
    files: tuple[str, ...]
    sources: list[tuple[str, ...]]  # the words of a sentence; of a text to translate, the one text
    targets: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def tagged(self) -> list[Tagged]:
        return [Tagged(words, tags) for words, tags in zip(self.sources, self.targets, strict=True)]

    def score(
        self, outputs: Sequence[str], *, indices: Sequence[int] | None = None, length_bins: Sequence[int] = ()
    ) -> SequenceScores:
        """Judge the outputs of all examples, or of `indices`."""
        chosen = range(len(self)) if indices is None else indices
        targets = [self.targets[i] for i in chosen]
        if self.task == TRANSLATION:
            sources, references = [self.sources[i][0] for i in chosen], [target[0] for target in targets]
            return translation_scores(sources, references, outputs, length_bins=length_bins)
        predicted = [output.split(" ") for output in outputs]
        return (entity_scores if self.task == ENTITIES else tag_scores)(targets, predicted)


def read_examples(task: TaskName, files: Sequence[str], *, limit: int | None = None) -> Examples:
    expected = 2 if task == TRANSLATION else 1
    if len(files) != expected:
        what = "two files, source and target" if expected == 2 else "one file"
        raise DataError(f"the task {task} takes {what}, {len(files)} came")
    for name in files:
        if not Path(name).is_file():
            raise DataError(f"{name} does not exist or is no file; check the path")
    if task == TRANSLATION:
        pairs = list(read_parallel(*files))[:limit]
        if not pairs:
            raise DataError(f"{files[0]} holds no line; give parallel text")
        return Examples(task, tuple(files), [(p.source,) for p in pairs], [(p.target,) for p in pairs])
    read = {ENTITIES: read_entities, TAGS: read_composite_tags}[task]
    sentences = list(islice(read(files[0]), limit))
    return Examples(task, tuple(files), [s.words for s in sentences], [s.tags for s in sentences])


def encode_examples(
    examples: Examples,
    model: Seq2SeqModel | ConditionalMaskedModel,
    *,
    longest: int | None = None,
    unseen_tags: str = REFUSE,
) -> tuple[SequencePairs, list[int]]:
    """Ids by the model's vocabularies, and which examples they are: those not empty and of at most `longest` tokens.

    A tag that the model does not know is refused, or has no id and so counts in no loss.
    """
    is_translation = examples.task == TRANSLATION
    tags = model.tags if isinstance(model, Seq2SeqModel) and not is_translation else []
    if not is_translation and unseen_tags == REFUSE:
        refuse_unseen_tags(examples.tagged, tags, path=examples.files[0])
    numbers = {tag: number for number, tag in enumerate(tags)}
    sources, targets, kept = [], [], []
    for number, (source, target) in enumerate(zip(examples.sources, examples.targets, strict=True)):
        source_ids = model.source_ids(source)
        target_ids = model.target_ids(target[0]) if is_translation else [numbers.get(tag, IGNORED) for tag in target]
        lengths = (len(source_ids), len(target_ids))
        if 0 < min(lengths) and (longest is None or max(lengths) <= longest):
            sources.append(source_ids)
            targets.append(target_ids)
            kept.append(number)
    if not kept:
        raise DataError(f"no example of {examples.files[0]} has at most {longest} tokens; raise longest")
    return SequencePairs(sources, targets), kept
