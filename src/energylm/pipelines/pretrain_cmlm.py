"""Train a conditional masked language model on parallel text, resume it, or find it finished: `energylm pretrain cmlm`.

OUTPUT/model/          the trained model, a folder for `ConditionalMaskedModel.from_pretrained` and `energylm mcmc`
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel, predict
from energylm.config.pretrain_cmlm import PretrainCMLMConfig
from energylm.config.seq2seq import TRANSLATION
from energylm.data.tokenizer import train_tokenizer
from energylm.files import sha256_of_file
from energylm.models.cmlm import ConditionalMaskedConfig, ConditionalMaskedLM
from energylm.models.parity import count_parameters
from energylm.bundles.sequence_examples import Examples, encode_examples, read_examples
from energylm.progress import say
from energylm.training.cmlm_task import ConditionalMaskedTask
from energylm.training.engine import state_of_run, train
from energylm.training.seeding import seeded
from energylm.training.trained_run import TrainedRun


@dataclass(frozen=True, kw_only=True)
class CMLMRun(TrainedRun):
    """What came of it; `validation` is of the weights that were saved, empty where nothing was validated."""

    validation: dict[str, float]

    def summary(self) -> str:
        if not self.validation:
            return f"not validated; step {self.steps:,}"
        found = self.validation
        return (
            f"{found['loss']:.3f} nats per hidden token, {found['accuracy']:.1%} right, {found['length_accuracy']:.1%} "
            f"of the lengths right, BLEU {found['bleu']:.1f} on the validation data; step {self.best_step:,} of "
            f"{self.steps:,}"
        )


@dataclass(frozen=True)
class CMLMPlan:
    """What a run would do, and what it finds in the output folder."""

    parameters: int
    pairs: int
    vocabulary_size: int
    epochs: float | None
    state: str

    def describe(self, config: PretrainCMLMConfig, output: Path) -> str:
        steps, shape = config.training.steps, config.network
        length = "until validation stops improving" if steps is None else f"{steps:,} steps ({self.epochs:.3g} epochs)"
        return (
            f"{output}: {self.state}: cmlm of {shape.encoder_layers} + {shape.decoder_layers} layers, width "
            f"{shape.width}, {self.parameters:,} parameters, {self.vocabulary_size:,} tokens, {length} of "
            f"{config.training.global_batch} pairs ({self.pairs:,} pairs)"
        )


def pretrain_cmlm(config: PretrainCMLMConfig, *, output: Path | str) -> CMLMRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    output = Path(output)
    result = train(_task(config), config.training, folder=output)
    return CMLMRun.of(result, output, validation=result.best_validation)


def plan_cmlm(config: PretrainCMLMConfig, *, output: Path | str) -> CMLMPlan:
    """Check all inputs and say what `pretrain_cmlm` would do. Writes nothing."""
    task = _task(config)
    steps = config.training.steps
    return CMLMPlan(
        parameters=count_parameters(task.model),
        pairs=len(task.train),
        vocabulary_size=task.model.config.vocab_size,
        epochs=None if steps is None else steps / task.batches.batches_an_epoch,
        state=state_of_run(Path(output)),
    )


def _task(config: PretrainCMLMConfig) -> ConditionalMaskedTask:
    train_examples = read_examples(TRANSLATION, config.train, limit=config.limit)
    valid_examples = read_examples(TRANSLATION, config.valid, limit=config.valid_limit)
    model = _new_model(config, train_examples)
    train_pairs, kept = encode_examples(train_examples, model, longest=config.longest)
    valid_pairs, valid_kept = encode_examples(valid_examples, model, longest=config.longest)
    if left_out := len(train_examples) + len(valid_examples) - len(kept) - len(valid_kept):
        say(f"{left_out:,} pairs have over {config.longest} tokens on a side: left out")

    def judge(pairs: Sequence[int]) -> dict[str, float]:
        read = model.reading_ids([valid_pairs.sources[pair].tolist() for pair in pairs])
        outputs = [read.decode(ids).strip() for ids in predict(read, iterations=config.iterations, length_beam=1)]
        scores = valid_examples.score(outputs, indices=[valid_kept[pair] for pair in pairs])
        return {"bleu": scores.quality}

    def save(network: nn.Module, folder: Path) -> None:
        model.name, model.provenance = folder.parent.name, _provenance(config)
        model.save_pretrained(folder)

    return ConditionalMaskedTask(
        model.network,
        train_pairs,
        valid_pairs,
        mask_token_id=int(model.tokenizer.mask_token_id),
        length_weight=config.length_weight,
        judge=judge,
        seed=config.training.seed,
        global_batch=config.training.global_batch,
        save_model=save,
        valid_batch=config.training.micro_batch or config.training.global_batch,
        fingerprint=_fingerprint(config),
    )


def _new_model(config: PretrainCMLMConfig, examples: Examples) -> ConditionalMaskedModel:
    texts = (text for pair in zip(examples.sources, examples.targets, strict=True) for side in pair for text in side)
    tokenizer = train_tokenizer(texts, vocabulary_size=config.vocabulary_size)
    shape = config.network
    with seeded(config.training.seed, "initialisation"):
        network = ConditionalMaskedLM(
            ConditionalMaskedConfig(
                vocab_size=len(tokenizer),
                hidden_size=shape.width,
                encoder_layers=shape.encoder_layers,
                decoder_layers=shape.decoder_layers,
                num_attention_heads=shape.heads,
                intermediate_size=shape.inner_width,
                dropout=shape.dropout,
                max_position_embeddings=config.longest,
            )
        )
    return ConditionalMaskedModel(network, tokenizer)


def _fingerprint(config: PretrainCMLMConfig) -> dict[str, Any]:
    files = {"train": config.train, "valid": config.valid}
    return {
        **config.model_dump(mode="json", exclude={"train", "valid", "training"}),
        **{name: [sha256_of_file(Path(file)) for file in paths] for name, paths in files.items()},
    }


def _provenance(config: PretrainCMLMConfig) -> dict[str, Any]:
    names = {"train": [Path(file).name for file in config.train], "valid": [Path(file).name for file in config.valid]}
    return {**names, "config": config.model_dump(mode="json", exclude={"train", "valid"})}
