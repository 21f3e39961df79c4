"""The work of chains, of conditional masked models and of exact studies, counted for `energylm plan`.

One text of mean length, one pair of sentences or one batch of a small language goes through a network of the right size
by the very sampler or loss that will run, and torch counts (`jobs.counting`). Proposals are counted as if each changed
something: those that do not are cheaper.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from energylm.config.models import MASKED, PHONEMES, PROJECTIONS
from energylm.config.sampling import MASK, MASK_PREDICT
from energylm.data.sequence_pairs import SequencePairs
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.jobs.costs import Counted, NetworkSettings, Surroundings, bytes_per_token
from energylm.jobs.counting import count_task, scaled, work_of
from energylm.models.bilstm_context import BiLSTMContext
from energylm.models.cloze_presets import build_masked_network
from energylm.models.cmlm import ConditionalMaskedConfig, ConditionalMaskedLM
from energylm.models.compute import FLOAT, Network, Work
from energylm.models.context_energies import BLOCK
from energylm.models.masked import ConditionalMaskedNetwork, MaskedNetwork
from energylm.randomness import row_keys, seeded
from energylm.registry import SAMPLERS
from energylm.samplers.chains import ChainState
from energylm.samplers.choices import ChainChoices
from energylm.samplers.mask_predict import MaskPredict
from energylm.samplers.masked_proposal import MaskedProposal
from energylm.training.sequence_pair_task import ConditionalMaskedTask
from energylm.training.task import Share
from energylm.verbs.chains.exact_study_cells import StudyCell, StudyData, cell_task, measure, study_cells, study_data
from energylm.verbs.chains.mcmc_run import PROPOSAL_LOGITS
from energylm.verbs.chains.mcmc_start import DEFAULT_LENGTH

if TYPE_CHECKING:
    from energylm.verbs.chains.exact_study import ExactStudy
    from energylm.verbs.chains.mcmc import MCMC
    from energylm.verbs.chains.pretrain_cmlm import PretrainCMLM

MASK_ID, ROWS = 0, 16  # of the pairs that stand for all: so many draws of how much is hidden come near their mean


def count_mcmc(verb: "MCMC", around: Surroundings) -> Counted:
    settings = around.settings(verb.model)
    network = around.network(verb.model) if settings is None else None
    vocabulary_size = int(settings.values["vocab_size"]) if settings else network.vocabulary_size if network else 0
    texts, length = _texts(verb, bytes_per_token(vocabulary_size))
    chain = _Chain(verb, _masked_model(settings, network, length), length)
    rows = texts * (max(verb.length_beam, len(verb.length or ())) if verb.sampler == MASK_PREDICT else verb.chains)
    groups = max(1.0, rows * vocabulary_size * length / PROPOSAL_LOGITS)
    counted = Counted()
    counted.add("searching", scaled(chain.work(), rows / around.world, passes=groups))
    if verb.sampler == MASK_PREDICT:  # only the best of a length beam has an energy
        counted.add("searching", scaled(chain.energy(), texts / around.world, passes=groups))
    return counted


class _Chain:
    """One row of a run."""

    def __init__(self, verb: "MCMC", model: Any, length: int) -> None:
        self.verb, self.model, self.length = verb, model, length
        self.target = MaskedLMEnergy(model, kind=verb.energy)
        self.allowed_V = torch.arange(model.vocabulary_size) != model.mask_token_id
        self.tokens_1T, self.lengths_1 = torch.ones(1, length, dtype=torch.int64), torch.tensor([length])
        self.source_1 = torch.zeros(1, dtype=torch.int64)

    def work(self) -> Work:
        """All epochs, or all iterations of mask-predict."""
        verb = self.verb
        if verb.sampler == MASK_PREDICT:
            return self._counted(self._predicted)
        energy, step_of = self.energy(), dict[int, Work]()
        work = energy
        first = verb.block if verb.block_share is None else max(1, round(verb.block_share * self.length))
        for epoch in range(verb.epochs):
            size = min(self.length, verb.annealing.block_size(first, epoch=epoch, epochs=verb.epochs))
            if size not in step_of:
                step_of[size] = self._counted(partial(self._step, size))
            work += step_of[size] * math.ceil(self.length / size)
            if not self._sampler().keeps_target or epoch < verb.forced_epochs:
                work += energy
            if verb.local_by_epoch:
                work += energy
        return work

    def energy(self) -> Work:
        """Of one state."""
        return self._counted(lambda: self.target.energies(self.tokens_1T, self.lengths_1, source_R=self.source_1))

    def _counted(self, run: Callable[[], object]) -> Work:
        with torch.no_grad():
            return work_of(run)

    def _sampler(self) -> Any:
        proposal = MaskedProposal(self.allowed_V, self.verb.proposal.truncation)
        return SAMPLERS.get(self.verb.sampler)(self.target, proposal, 1.0, None)

    def _predicted(self) -> None:
        predict = MaskPredict(self.model, self.allowed_V, self.verb.iterations)
        free_1T = torch.ones_like(self.tokens_1T, dtype=torch.bool)
        predict.run(self.tokens_1T, self.lengths_1, free_RT=free_1T, source_R=self.source_1)

    def _step(self, size: int) -> None:
        sampler, energy_1 = self._sampler(), torch.zeros(1, dtype=torch.float64)
        state = ChainState(self.tokens_1T, self.lengths_1, energy_1, self.source_1)
        choices = ChainChoices(row_keys(0, self.source_1, self.source_1))
        sampler.step(state, (torch.arange(self.length) < size)[None], choices)


@lru_cache(maxsize=8)
def _bert(network: Network, length: int) -> MaskedNetwork:
    shape = {"layers": network.layers, "width": network.width, "heads": network.heads}
    with seeded(0, "counting"):
        built = build_masked_network(
            "bit-local-tiny" if network.gated else "bit-tiny",
            vocabulary_size=network.vocabulary_size,
            max_length=length + 2,
            pad_token_id=1,
            overrides=shape | {"feedforward_width": network.inner_width},
        )
    return MaskedNetwork(built.train(False), mask_token_id=MASK_ID)


def _masked_model(settings: NetworkSettings | None, network: Network | None, length: int) -> Any:
    if settings is None:
        assert network is not None
        return _bert(network, length)
    return ConditionalMaskedNetwork(_conditional(settings.values).train(False), [[1] * length], mask_token_id=MASK_ID)


def _conditional(values: Any) -> ConditionalMaskedLM:
    with seeded(0, "counting"):
        return ConditionalMaskedLM(ConditionalMaskedConfig.from_dict(dict(values)))


def _texts(verb: "MCMC", bytes_a_token: float) -> tuple[int, int]:
    """How many texts chains start from, and their mean length in tokens; a translation is as long as its source."""
    given = [*verb.source, *_lines(verb.source_file)] or [*verb.init, *_lines(verb.input)] or [MASK]
    tokens = [
        fmean(verb.length or [DEFAULT_LENGTH]) if text == MASK else math.ceil(len(text.encode()) / bytes_a_token)
        for text in given
    ]
    chosen = [count for count in tokens if verb.longest_source is None or count <= verb.longest_source][: verb.limit]
    return len(chosen), math.ceil(fmean(chosen or [1]))


def _lines(file: str | None) -> list[str]:
    return (
        [] if file is None else [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    )


def count_cmlm(verb: "PretrainCMLM", around: Surroundings) -> Counted:
    values = verb.network.settings(vocabulary_size=verb.vocabulary_size, longest=verb.longest)
    sources = _lines(verb.train[0])
    is_there = Path(verb.train[1]).is_file()  # distilled targets are yet to be written
    targets = _lines(verb.train[1]) if is_there else sources
    sizes = [
        math.ceil(
            fmean([len(line.encode()) for line in side[: verb.limit]] or [1]) / bytes_per_token(verb.vocabulary_size)
        )
        for side in (sources, targets)
    ]
    source, target = (min(size, verb.longest) for size in sizes)
    network = _conditional(values)
    batch = verb.training.global_batch
    task = ConditionalMaskedTask(
        network,
        SequencePairs([[1] * source] * batch, [[1] * target] * batch),
        SequencePairs([[1] * source] * ROWS, [[1] * target] * ROWS),
        mask_token_id=MASK_ID,
        length_weight=verb.length_weight,
        judge=lambda indices: {},
        seed=0,
        global_batch=batch,
        save_model=lambda model, folder: None,
    )

    def validate() -> None:
        task.validate(network.train(False), Share())
        read = ConditionalMaskedNetwork(network, [[1] * source] * ROWS, mask_token_id=MASK_ID)
        tokens_RT, lengths_R = torch.ones(ROWS, target, dtype=torch.int64), torch.full((ROWS,), target)
        predict = MaskPredict(read, torch.arange(verb.vocabulary_size) != MASK_ID, verb.iterations)
        predict.run(tokens_RT, lengths_R, free_RT=torch.ones_like(tokens_RT, dtype=torch.bool))

    validated = len(_lines(verb.valid[0])[: verb.valid_limit])
    counted = count_task(
        task, verb.training, around, rows=min(ROWS, batch), validate=validate, validated=validated / ROWS
    )
    counted.product = NetworkSettings(values)
    return counted


def count_study(verb: "ExactStudy", around: Surroundings) -> Counted:
    """Every cell of the first seed, as many times as there are seeds."""
    total = Counted()
    for cell in (cell for cell in study_cells(verb) if cell.seed == 0):
        data = study_data(cell, verb)
        teacher = None
        if cell.objective in PROJECTIONS:
            masked = StudyCell(cell.language, cell.size, MASKED, cell.seed)
            teacher = cell_task(masked, verb, data).model
        task, training = cell_task(cell, verb, data, teacher), verb.training_for(cell.trained)
        counted = count_task(
            task,
            training,
            around,
            rows=training.global_batch,
            validate=partial(task.validate, task.model, Share()),
            validated=1,
        )
        counted.add("searching", _measuring(task.model, data, phonemes=cell.language == PHONEMES))
        for name, amount in counted.quantities.items():
            total.count(name, amount * verb.seeds)
        total.memory_bytes = max(total.memory_bytes, counted.memory_bytes)
        total.disk_bytes += counted.disk_bytes * verb.seeds
    return total


def _measuring(network: BiLSTMContext, data: StudyData, *, phonemes: bool) -> Work:
    """Log Z of phonemes is a sum over all sequences of a length, too many to be tried: T products with the head
    for each, and contexts that are joined, rectified and read again (`models.context_energies.log_partition`)."""
    if not phonemes:
        probs = data.log_length_probs
        return work_of(lambda: measure(network.train(False), data.held_out, data.weights_N, log_length_probs=probs))
    vocabulary, head = data.vocabulary_size, int(network.config.head_size)
    work = Work()
    for length in sorted(set(data.held_out.lengths_N.tolist())):
        contexts = (math.ceil(vocabulary / BLOCK) * max(0, length - 2) + 2) * vocabulary ** (length - 1)
        work += Work(2.0 * head * length * vocabulary**length, 3.0 * FLOAT * head * contexts)
    return work
