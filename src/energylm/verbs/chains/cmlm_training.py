"""A conditional masked language model's run: its pairs, network and task for the training engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel, predict
from energylm.bundles.sequence_examples import Examples, encode_examples, read_examples
from energylm.config.seq2seq import TRANSLATION
from energylm.data.tokenizer import train_tokenizer
from energylm.files import sha256_of_file
from energylm.models.cmlm import ConditionalMaskedConfig, ConditionalMaskedLM
from energylm.models.presets import count_parameters
from energylm.progress import say
from energylm.randomness import seeded
from energylm.training import engine
from energylm.training.sequence_pair_task import ConditionalMaskedTask
from energylm.training.state import TrainedRun
from energylm.verbs.chains.pretrain_cmlm import PretrainCMLM


@dataclass(frozen=True, kw_only=True)
class CMLMRun(TrainedRun):
    """What came of it; `validation` is of the weights that were saved, empty where nothing was validated."""

    validation: dict[str, float]
    epochs: float

    def summary(self) -> str:
        if not self.validation:
            return f"not validated; step {self.steps:,}"
        values = self.validation
        return (
            f"{values['loss']:.3f} nats per hidden token, {values['accuracy']:.1%} right, "
            f"{values['length_accuracy']:.1%} of the lengths right, BLEU {values['bleu']:.1f} on the validation data; "
            f"step {self.best_step:,} of {self.steps:,}"
        )


def train(verb: PretrainCMLM, output: Path) -> CMLMRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    task = _task(verb)
    result = engine.train(task, verb.training, folder=output)
    epochs = result.steps / task.batches.batches_an_epoch
    return CMLMRun.of(result, output, validation=result.best_validation, epochs=epochs)


def describe(verb: PretrainCMLM, output: Path) -> str:
    """Check all inputs and say what a run would do. Writes nothing."""
    task = _task(verb)
    steps, shape = verb.training.steps, verb.network
    length = "until validation stops improving"
    if steps is not None:
        length = f"{steps:,} steps ({steps / task.batches.batches_an_epoch:.3g} epochs)"
    return (
        f"{output}: {engine.state_of_run(output)}: cmlm of {shape.encoder_layers} + {shape.decoder_layers} layers, "
        f"width {shape.width}, {count_parameters(task.model):,} parameters, {task.model.config.vocab_size:,} tokens, "
        f"{length} of {verb.training.global_batch} pairs ({len(task.train):,} pairs)"
    )


def _task(verb: PretrainCMLM) -> ConditionalMaskedTask:
    train_examples = read_examples(TRANSLATION, verb.train, limit=verb.limit)
    valid_examples = read_examples(TRANSLATION, verb.valid, limit=verb.valid_limit)
    model = _new_model(verb, train_examples)
    train_pairs, kept = encode_examples(train_examples, model, longest=verb.longest)
    valid_pairs, valid_kept = encode_examples(valid_examples, model, longest=verb.longest)
    if left_out := len(train_examples) + len(valid_examples) - len(kept) - len(valid_kept):
        say(f"{left_out:,} pairs have over {verb.longest} tokens on a side: left out")

    def judge(pairs: Sequence[int]) -> dict[str, float]:
        read = model.reading_ids([valid_pairs.sources[pair].tolist() for pair in pairs])
        outputs = [read.decode(ids).strip() for ids in predict(read, iterations=verb.iterations, length_beam=1)]
        scores = valid_examples.score(outputs, indices=[valid_kept[pair] for pair in pairs])
        return {"bleu": scores.quality}

    def save(network: nn.Module, folder: Path) -> None:
        model.name, model.provenance = folder.parent.name, _provenance(verb)
        model.save_pretrained(folder)

    return ConditionalMaskedTask(
        model.network,
        train_pairs,
        valid_pairs,
        mask_token_id=int(model.tokenizer.mask_token_id),
        length_weight=verb.length_weight,
        judge=judge,
        seed=verb.training.seed,
        global_batch=verb.training.global_batch,
        save_model=save,
        valid_batch=verb.training.micro_batch or verb.training.global_batch,
        fingerprint=_fingerprint(verb),
    )


def _new_model(verb: PretrainCMLM, examples: Examples) -> ConditionalMaskedModel:
    texts = (text for pair in zip(examples.sources, examples.targets, strict=True) for side in pair for text in side)
    tokenizer = train_tokenizer(texts, vocabulary_size=verb.vocabulary_size)
    settings = verb.network.settings(vocabulary_size=len(tokenizer), longest=verb.longest)
    with seeded(verb.training.seed, "initialisation"):
        network = ConditionalMaskedLM(ConditionalMaskedConfig(**settings))
    return ConditionalMaskedModel(network, tokenizer)


def _fingerprint(verb: PretrainCMLM) -> dict[str, Any]:
    files = {"train": verb.train, "valid": verb.valid}
    return {
        **verb.model_dump(mode="json", exclude={"train", "valid", "training"}),
        **{name: [sha256_of_file(Path(file)) for file in paths] for name, paths in files.items()},
    }


def _provenance(verb: PretrainCMLM) -> dict[str, Any]:
    names = {"train": [Path(file).name for file in verb.train], "valid": [Path(file).name for file in verb.valid]}
    return {**names, "config": verb.model_dump(mode="json", exclude={"train", "valid"})}
