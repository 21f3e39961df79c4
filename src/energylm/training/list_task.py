"""Train an energy on n-best lists: the recogniser's score is the base model, the rest of a list the noise.

    batch of step s    lists in an order of each epoch's own, each with all its hypotheses, or some that are drawn anew
    loss               a function of (f, E, cost) over a list by name: `objectives.list_losses`

Energies come from whole texts (`WholeTexts`: any network that gives one), are those of an Electric's tokens, added up
(`TokenEnergies`), or a causal network's own log-likelihoods (`PrefixTrees`): E(h) = −w · log P(h | what was heard
before), each list read as the tree of its prefixes.

A teacher in place of errors (`TaughtListTask`): token energies e_t of a network that reads a text at once learn the
score s_w that a slower scorer, say a language model after the words heard before, gives each word. No reference is
needed for that.

    L = mean over words of H₂(Σ_{t∈w} −e_t − s_w)  +  0.1 · mean over lists of H₃(d_h − mean d)
    d_h = Σ_w (Σ_{t∈w} −e_t − s_w)        H_δ(x) = x²/2, and δ(|x| − δ/2) from |x| = δ on (Huber)

The first part has a number to learn for each word, the second asks for what reranking uses: differences in a list.

Only lists in which some hypothesis is better than another are read: the others have no gradient. Validation counts, of
lists that no update sees, the errors above the oracle's that f − E chooses (`excess`), and the loss.

`list_folds` cuts lists into parts for cross-validation, so that every list is judged by an energy that never saw it.
Neighbours stay together (utterances of one speaker and book follow each other), and so do lists with the same
reference, wherever they stand: a text that is learnt by heart in one part must not be met again in another.

Relations  `energy_task` contrasts real text with a language model's; `verbs.cloze.rerank_training` runs the folds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, huber_loss
from torch.nn.utils.rnn import pad_sequence

from energylm.data.nbest import NBest, recording_of
from energylm.errors import DataError
from energylm.models.contexts import length_batches
from energylm.models.prefix_tree import PrefixTree, TreeBatch, tree_logits
from energylm.numerics.categorical import widened
from energylm.objectives.list_losses import ListLoss, best_members, teaches
from energylm.progress import say
from energylm.randomness import derive_seed, epoch_order
from energylm.training.task import Batch, Share, Sums

Encode = Callable[[Sequence[str]], tuple[Tensor, Tensor]]  # texts -> (S, T) right-padded ids and (S,) lengths
FEWEST_TO_LEARN = 2
TOKENS_AT_ONCE = 512  # texts of a batch differ in length: padded to the longest, half of what is read would be nothing
WORD_DELTA, LIST_DELTA, LIST_SHARE = 2.0, 3.0, 0.1  # nats, nats, and the weight of differences beside words
RIGHT = 1e-9  # cost of a hypothesis that is the reference, up to rounding
_ABSENT = -torch.inf


@dataclass(frozen=True)
class CostedList:
    """An n-best list with what choosing each of its hypotheses costs."""

    texts: tuple[str, ...]
    base: tuple[float, ...]  # the recogniser's scores, higher = better
    costs: tuple[float, ...]
    context: str = ""  # what was heard before
    taught: tuple[tuple[float, ...], ...] = ()  # a teacher's score of each word of each text

    @property
    def teaches(self) -> bool:
        return bool(self.taught) or len(set(self.costs)) > 1

    def some(self, count: int | None, random: Random) -> "CostedList":
        """A best hypothesis, one that is worse, and others up to `count`, drawn; all where there are no more."""
        if count is None or len(self.texts) <= count:
            return self
        drawn = list(range(len(self.texts)))
        random.shuffle(drawn)
        least = min(self.costs)
        best = next(index for index in drawn if self.costs[index] == least)
        worse = next((index for index in drawn if self.costs[index] > least), best)
        chosen = sorted(list(dict.fromkeys([best, worse, *drawn]))[:count])
        return CostedList(
            texts=tuple(self.texts[index] for index in chosen),
            base=tuple(self.base[index] for index in chosen),
            costs=tuple(self.costs[index] for index in chosen),
            context=self.context,
            taught=tuple(self.taught[index] for index in chosen if self.taught),
        )


def costed_lists(
    lists: Sequence[NBest], cost_UH: NDArray[np.float64], *, with_reference: bool = False
) -> list[CostedList]:
    """What choosing each hypothesis with text costs; where none is right, the reference may stand beside them, as one
    that costs nothing and has the recogniser's highest score."""
    costed = []
    for row, of_list in enumerate(lists):
        filled = [index for index, each in enumerate(of_list.hypotheses) if each.text.strip()]
        members = [of_list.hypotheses[index] for index in filled]
        costs = tuple(float(cost_UH[row, index]) for index in filled)
        texts, base = tuple(each.text for each in members), tuple(each.score for each in members)
        reference = (of_list.reference or "").strip()
        if with_reference and reference and members and min(costs) > RIGHT:
            texts, base, costs = (*texts, reference), (*base, max(base)), (*costs, 0.0)
        costed.append(CostedList(texts, base, costs, of_list.context))
    return costed


def list_folds(references: Sequence[str], count: int) -> list[NDArray[np.int64]]:
    """The lists of each of `count` folds: runs of neighbours of about the same size, equal references together."""
    if not 2 <= count <= len(references):
        raise DataError(
            f"{len(references)} lists cannot make {count} folds; give 2 folds at least, and a list for each"
        )
    fold_of: dict[str, int] = {}
    fold_U = np.empty(len(references), np.int64)
    for index, reference in enumerate(references):
        fold_U[index] = fold_of.setdefault(same_reference(reference), index * count // len(references))
    return [np.flatnonzero(fold_U == fold) for fold in range(count)]


def same_reference(reference: str | None) -> str:
    """What two references have in common that differ in case and white space alone."""
    return " ".join((reference or "").split()).casefold()


def lists_apart(learnt: list[NBest], judged: list[NBest], name: str) -> list[NBest]:
    """Of lists that are only learnt from those without a reference of the judged ones."""
    unseen = {same_reference(each.reference) for each in judged}
    kept = [each for each in learnt if same_reference(each.reference) not in unseen]
    left = len(learnt) - len(kept)
    if left:
        say(f"energylm: {left:,} training lists have the reference of a {name} list and are left out")
    recordings, of_judged = (set(map(recording_of, lists)) for lists in (kept, judged))
    known = sum(recording_of(each) in recordings for each in judged)
    if known and len(of_judged) > 1:  # otherwise their names are mere numbers
        say(
            f"energylm: {known:,} of {len(judged):,} {name} lists come from recordings that are learnt from as well, "
            f"so they say more good of the result than new recordings will; give {name} lists of other recordings"
        )
    return kept


class ListReader(Protocol):
    """How the texts of lists get energies."""

    def read(self, lists: Sequence[CostedList]) -> Batch: ...

    def tokens(self, batch: Batch) -> int: ...

    def energies(self, model: nn.Module, batch: Batch) -> Tensor:
        """(S,) of all texts of all lists, one after the other."""
        ...


@dataclass(frozen=True)
class WholeTexts:
    """`model(tokens_BT, lengths_B)` gives energies (B,)."""

    encode: Encode

    def read(self, lists: Sequence[CostedList]) -> Batch:
        tokens_ST, lengths_S = self.encode([text for each in lists for text in each.texts])
        return {"tokens_ST": tokens_ST, "lengths_S": lengths_S}

    def tokens(self, batch: Batch) -> int:
        return int(batch["lengths_S"].sum())

    def energies(self, model: nn.Module, batch: Batch) -> Tensor:
        return in_order(read_by_length(model, batch["tokens_ST"], batch["lengths_S"]))


@dataclass(frozen=True)
class PrefixTrees:
    """`model` is a causal network of transformers. `encode(context, text)` gives the tokens of both, and how many of
    them are the context's: these are read and not counted."""

    encode: Callable[[str, str], tuple[Sequence[int], int]]
    start_token_id: int
    weight: float  # w

    def read(self, lists: Sequence[CostedList]) -> Batch:
        trees, texts = [], 0
        edges: list[tuple[int, int, int]] = []  # list, node, token
        counted: list[tuple[int, int]] = []  # edge, text
        for row, each in enumerate(lists):
            encoded = [self.encode(each.context, text) for text in each.texts]
            tree = PrefixTree.of([ids for ids, _ in encoded], start_token_id=self.start_token_id)
            for (_, given), path in zip(encoded, tree.paths, strict=True):
                counted += [(len(edges) + edge, texts) for edge in path[given:]]
                texts += 1
            edges += [(row, node, token) for node, token in zip(tree.edge_node_E, tree.edge_token_E, strict=True)]
            trees.append(tree)
        batch = TreeBatch.of(trees, device=torch.device("cpu"))
        nodes_B = torch.tensor([tree.nodes for tree in trees])
        return {**vars(batch), "edge_E3": torch.tensor(edges), "counted_C2": torch.tensor(counted), "nodes_B": nodes_B}

    def tokens(self, batch: Batch) -> int:
        return int(batch["nodes_B"].sum())

    def energies(self, model: nn.Module, batch: Batch) -> Tensor:
        logits_BNV = tree_logits(model, TreeBatch(*(batch[each.name] for each in fields(TreeBatch))))
        (row_E, node_E, token_E), (edge_C, text_C) = batch["edge_E3"].T, batch["counted_C2"].T
        log_prob_E = -cross_entropy(widened(logits_BNV[row_E, node_E]), token_E, reduction="none")
        log_prob_S = log_prob_E.new_zeros(int(text_C.max()) + 1).index_add(0, text_C, log_prob_E[edge_C])
        return -self.weight * log_prob_S


@dataclass(frozen=True)
class TokenEnergies:
    """`model(tokens_BT, lengths_B)` gives token energies (B, T). `encode(text)` gives the tokens of a text, and the
    word that each belongs to, below 0 for none; `frame` puts what the network expects around rows of them."""

    encode: Callable[[str], tuple[Sequence[int], Sequence[int]]]
    frame: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    def read(self, lists: Sequence[CostedList]) -> Batch:
        rows = [torch.tensor(self.encode(text)[0]) for each in lists for text in each.texts]
        return self._framed(rows, [torch.ones_like(row) for row in rows])

    def _framed(self, rows: list[Tensor], words: list[Tensor]) -> Batch:
        """Rows of tokens within their frames, and the number of each token's word, 0 where there is none."""
        lengths_S = torch.tensor([len(row) for row in rows])
        tokens_SF, framed_S = self.frame(pad_sequence(rows, batch_first=True), lengths_S)
        before = int(framed_S[0] - lengths_S[0]) // 2
        word_SF, word_ST = torch.zeros_like(tokens_SF), pad_sequence(words, batch_first=True)
        word_SF[:, before : before + word_ST.shape[1]] = word_ST
        return {"tokens_ST": tokens_SF, "lengths_S": framed_S, "word_ST": word_SF}

    def tokens(self, batch: Batch) -> int:
        return int(batch["lengths_S"].sum())

    def energies(self, model: nn.Module, batch: Batch) -> Tensor:
        counted_ST, read = batch["word_ST"] > 0, read_by_length(model, batch["tokens_ST"], batch["lengths_S"])
        return in_order((rows, (e_RT * counted_ST[rows, : e_RT.shape[1]]).sum(-1)) for rows, e_RT in read)


class TaughtWords(TokenEnergies):
    """Of lists whose words a teacher has scored."""

    def read(self, lists: Sequence[CostedList]) -> Batch:
        rows: list[Tensor] = []
        words: list[Tensor] = []  # the number of each token's word among all words; 0 for none
        taught, text_of_word = [0.0], [0]
        for each in lists:
            for text, scores in zip(each.texts, each.taught, strict=True):
                ids, word_of_token = self.encode(text)
                rows.append(torch.tensor(ids))
                words.append(torch.tensor([word + len(taught) if word >= 0 else 0 for word in word_of_token]))
                text_of_word += [len(rows) - 1] * len(scores)
                taught += scores
        of_words = {"taught_W": torch.tensor(taught), "text_W": torch.tensor(text_of_word)}
        return {**self._framed(rows, words), **of_words}

    def word_scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(W,) Σ −e over the tokens of each word; the first, of no word, is 0."""
        word_ST = batch["word_ST"]
        score_W = batch["taught_W"].new_zeros(len(batch["taught_W"]))
        for rows, energy_RT in read_by_length(model, batch["tokens_ST"], batch["lengths_S"]):
            score_W = score_W.index_add(0, word_ST[rows, : energy_RT.shape[1]].flatten(), -energy_RT.flatten())
        return score_W * (torch.arange(len(score_W), device=score_W.device) > 0)


def read_by_length(model: nn.Module, tokens_ST: Tensor, lengths_S: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of about the same length, and what the model says of them.

    On a CPU attention is multiplied out: fused, it goes backward five times slower through sentences in bfloat16.
    """
    is_cpu = tokens_ST.device.type == "cpu"
    for rows, longest in length_batches(lengths_S, tokens_at_once=TOKENS_AT_ONCE):
        with sdpa_kernel(SDPBackend.MATH) if is_cpu else nullcontext():
            said = model(tokens_ST[rows, :longest], lengths_S[rows])
        yield rows, said


def in_order(parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """(S,) values of rows that came in another order."""
    rows, values = zip(*parts, strict=True)
    return torch.cat(values)[torch.cat(rows).argsort()]


class ListTask:
    """A `training.task.Task`; `reader` says what the model is."""

    loss_weights: Mapping[str, float] = {"loss": 1.0}

    def __init__(
        self,
        model: nn.Module,
        train: Sequence[CostedList],
        valid: Sequence[CostedList] = (),
        *,
        objective: ListLoss,
        reader: ListReader,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        hypotheses: int | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.reader, self.objective, self.hypotheses = model, reader, objective, hypotheses
        self.train = [each for each in train if each.teaches]
        self.valid = [each for each in valid if each.teaches]
        if len(self.train) < FEWEST_TO_LEARN:
            raise DataError(
                f"{len(self.train)} of {len(train)} lists have a hypothesis that is better than another; there is "
                "nothing to learn from the others: give more lists, or longer ones"
            )
        self.seed, self.global_batch, self.save = seed, global_batch, save_model
        self.fingerprint = {"lists": len(self.train), **(fingerprint or {})}

    def batch(self, step: int, rows: range) -> Batch:
        positions = (step - 1) * self.global_batch + np.arange(rows.start, rows.stop, dtype=np.int64)
        epoch_U, index_U = epoch_order(positions, len(self.train), seed=derive_seed(self.seed, "list order"))
        drawn = zip(epoch_U.tolist(), index_U.tolist(), strict=True)
        return self._read([self._some(index, epoch) for epoch, index in drawn])

    def _some(self, index: int, epoch: int) -> CostedList:
        return self.train[index].some(self.hypotheses, Random(derive_seed(self.seed, "hypotheses", epoch, index)))

    def _read(self, lists: Sequence[CostedList]) -> Batch:
        """What the reader made of the lists, and f and costs as (U, H); f = −∞ for what is not there."""
        shape = (len(lists), max(len(each.texts) for each in lists))
        base_UH, cost_UH = torch.full(shape, _ABSENT), torch.zeros(shape)
        for row, each in enumerate(lists):
            base_UH[row, : len(each.base)] = torch.tensor(each.base)
            cost_UH[row, : len(each.costs)] = torch.tensor(each.costs)
        return {**self.reader.read(lists), "base_UH": base_UH, "cost_UH": cost_UH}

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["base_UH"]))}

    def tokens(self, batch: Batch) -> int:
        return self.reader.tokens(batch)

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        energy_S = self.reader.energies(model, batch)
        base_UH, cost_UH = batch["base_UH"], batch["cost_UH"]
        energy_UH = energy_S.new_zeros(base_UH.shape).masked_scatter(base_UH.isfinite(), energy_S)
        lists = torch.tensor(float(len(base_UH)), device=energy_S.device)
        excess_U = chosen_excess(base_UH, energy_UH.detach(), cost_UH)
        return Sums({"loss": self.objective(base_UH, energy_UH, cost_UH).sum()}, {"excess": (excess_U.sum(), lists)})

    @torch.no_grad()
    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        own = self.valid[share.rank :: share.world]
        device, totals = next(model.parameters()).device, {"loss": np.zeros(2), "excess": np.zeros(2)}
        for start in range(0, len(own), self.global_batch):
            batch = self._read(own[start : start + self.global_batch])
            sums = self.loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
            totals["loss"] += float(sums.losses["loss"]), self.counts(batch)["loss"]
            totals["excess"] += float(sums.metrics["excess"][0]), len(batch["base_UH"])
        return {name: (float(total), float(count)) for name, (total, count) in totals.items()} if own else {}


class TaughtListTask(ListTask):
    """Lists whose words a teacher has scored; `reader` is a `TaughtWords`."""

    loss_weights: Mapping[str, float] = {"loss": 1.0, "list_loss": LIST_SHARE}

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["taught_W"]) - 1), "list_loss": float(len(batch["base_UH"]))}

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        assert isinstance(self.reader, TaughtWords)
        base_UH, taught_W, text_W = batch["base_UH"], batch["taught_W"], batch["text_W"]
        score_W = self.reader.word_scores(model, batch)
        by_text_S = score_W.new_zeros(len(batch["lengths_S"]))
        too_high_S = by_text_S.index_add(0, text_W, score_W - taught_W)
        exists_UH = base_UH.isfinite()
        too_high_UH = score_W.new_zeros(base_UH.shape).masked_scatter(exists_UH, too_high_S)
        energy_S = -by_text_S.index_add(0, text_W, score_W.detach())
        energy_UH = score_W.new_zeros(base_UH.shape).masked_scatter(exists_UH, energy_S)
        excess_U = chosen_excess(base_UH, energy_UH, batch["cost_UH"])
        losses = {
            "loss": huber_loss(score_W[1:], taught_W[1:], delta=WORD_DELTA, reduction="sum"),
            "list_loss": list_differences(too_high_UH, exists_UH).sum(),
        }
        return Sums(losses, {"excess": (excess_U.sum(), torch.tensor(float(len(base_UH)), device=score_W.device))})


def list_differences(too_high_UH: Tensor, exists_UH: Tensor) -> Tensor:
    """(U,) by how much the texts of each list are scored too high or too low against each other."""
    count_U1 = exists_UH.sum(-1, keepdim=True)
    mean_U1 = too_high_UH.where(exists_UH, 0.0).sum(-1, keepdim=True) / count_U1
    apart_UH = huber_loss(too_high_UH, mean_U1.expand_as(too_high_UH), delta=LIST_DELTA, reduction="none")
    return apart_UH.where(exists_UH, 0.0).sum(-1) / count_U1[:, 0]


def chosen_excess(base_UH: Tensor, energy_UH: Tensor, cost_UH: Tensor) -> Tensor:
    """(U,) what the highest f − E of each list costs above the cheapest hypothesis; 0 where all cost the same."""
    chosen_U1 = (base_UH - energy_UH).masked_fill(~base_UH.isfinite(), _ABSENT).argmax(-1, keepdim=True)
    least_U = cost_UH.masked_fill(~best_members(base_UH, cost_UH), torch.inf).amin(-1)
    return (cost_UH.gather(-1, chosen_U1)[:, 0] - least_U).where(teaches(base_UH, cost_UH), 0.0)
