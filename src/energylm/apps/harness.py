"""Models of energylm in EleutherAI's lm-evaluation-harness: `energylm-lm-eval --model energylm --model_args …`.

    causal            log P(continuation | context), as the harness's own `hf` has it
    masked, Electric  Σ over the continuation's tokens of log p(x_t | all other tokens of context and continuation): a
                      pseudo-log-likelihood. It ranks continuations; it is no log-probability, so perplexities made of
                      it are pseudo-perplexities, and they cannot be compared with those of causal models. Nothing is
                      said of greedy decoding, which such a model does not have
    joint             log P_LM(x | c) − E(c, x) − log Z(c), Z over continuations of as many tokens, from n samples. It
                      has two ends, since log Z is estimated from below and from above; `end` chooses the one that is
                      returned, and the results' config has the means of both. Documents are read in blocks of
                      `block_tokens`, each a joint model after all that comes before it

The harness finds models by its own list, which no installed package can extend; so this program puts ours on the list
and hands the rest of the command line over. From Python, importing this module is enough.

Relations  `bundles.scorer` scores texts, `bundles.residual_model` is the joint model; `energylm score` needs no harness
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from energylm.bundles.language_model import KIND as CAUSAL
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import MANIFEST
from energylm.bundles.residual_model import KIND as JOINT
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.scorer import ENERGY, Scorer, kind_of, padded
from energylm.errors import ConfigError, ModelError, extra
from energylm.files import read_json
from energylm.models.contexts import own_passes

with extra("harness"):
    import lm_eval.models  # its own list of models first: it is made only where there is none
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM, TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

End = Literal["lower", "upper"]
Pair = tuple[list[int], list[int]]  # ids that are given, ids that are scored
NAME = "energylm"
DEFAULT_LENGTH = 2048  # of a model that names no limit, as in the harness
DEFAULT_DEVICE = "cuda:0"  # what the harness says where nobody did, on machines without one, too
AT_ONCE = 256  # requests whose numbers wait in memory; the model cuts them into batches by itself


class CausalHarness(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A causal language model. `prefix_token_id` stands before texts without a context; the harness's own choice, the
    tokenizer's start token or else its end token, where none is given."""

    def __init__(self, lm: LanguageModel, *, prefix_token_id: int | None = None, max_length: int | None = None) -> None:
        super().__init__()
        if lm.model.direction != "left-to-right":
            raise ModelError(f"{lm.name} reads {lm.model.direction}; the harness scores what comes after a context")
        self.lm, self.tokenizer = lm, lm.tokenizer
        self.max_length = max_length or lm.model.max_length or DEFAULT_LENGTH
        self._prefix = prefix_token_id

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> LM:
        return harness_model(**simple_parse_args_string(arg_string), **_known(additional_config))

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> LM:
        return harness_model(**arg_dict, **_known(additional_config))

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        if self._prefix is not None:
            return int(self._prefix)
        start = self.tokenizer.bos_token_id
        return self.eot_token_id if start is None else int(start)

    @property
    def tokenizer_name(self) -> str:
        return self.lm.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **special))

    def get_model_info(self) -> dict[str, Any]:
        return {"energylm_convention": "log-likelihood in nats, as the harness's own hf model has it"}

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        return self.log_likelihoods([(given, scored) for _, given, scored in requests])

    def log_likelihoods(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would write it. What is longer than the
        model loses its beginning, as in the harness."""
        results = []
        for start in range(0, len(pairs), AT_ONCE):
            rows = [(given + scored)[-(self.max_length + 1) :] for given, scored in pairs[start : start + AT_ONCE]]
            lengths_B = torch.tensor([len(row) for row in rows])
            with own_passes():  # the numbers of the harness's own hf model, beyond the rounding of packed weights
                told = self.lm.model.token_statistics(padded(rows), lengths_B, first=1)
            for index, (_, scored) in enumerate(pairs[start : start + AT_ONCE]):
                stop = len(rows[index]) - 1
                span = slice(stop - len(scored), stop)
                log_prob = math.fsum(told.log_prob_BT[index, span].tolist())
                results.append((log_prob, bool((told.log_rank_BT[index, span] == 0).all())))
        return results

    def rolling_pairs(self, text: str) -> list[Pair]:
        """The windows of a document; every token is scored once."""
        options = {"prefix_token": self.prefix_token_id, "max_seq_len": self.max_length, "context_len": 1}
        return [make_disjoint_window(pair) for pair in get_rolling_token_windows(self.tok_encode(text), **options)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows = [self.rolling_pairs(*request.args) for request in requests]
        values = iter(self.log_likelihoods([pair for of_text in windows for pair in of_text]))
        return [math.fsum(next(values)[0] for _ in of_text) for of_text in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        texts = []
        for index, request in enumerate(requests):
            context, options = request.args
            wanted = normalize_gen_kwargs(options)
            given = self.tok_encode(context)[-(self.max_length - wanted["max_gen_toks"]) :]
            drawn = self.continuation(given or [self.prefix_token_id], wanted, index)
            texts.append(postprocess_generated_text(drawn, wanted["until"], None))
        return texts

    def continuation(self, given: list[int], options: Any, index: int) -> str:
        greedy = not options["do_sample"] or options["temperature"] == 0
        how = {"top_k": 1} if greedy else {"temperature": options["temperature"], "top_p": options.get("top_p")}
        drawn = self.lm.sample([given], n=1, max_new_tokens=options["max_gen_toks"], first_context=index, **how)
        return drawn.texts[0][0]


class JointHarness(CausalHarness):
    """A language model under an energy."""

    def __init__(
        self,
        joint: ResidualModel,
        *,
        n: int = 256,
        end: End = "lower",
        seed: int = 0,
        block_tokens: int = 40,
        **options: Any,
    ) -> None:
        if end not in get_args(End):
            raise ConfigError(f"end {end!r} is neither 'lower' nor 'upper'; both are in the results' config anyway")
        if not isinstance(joint.lm, LanguageModel):
            raise ModelError("the harness needs a tokenizer; wrap your network in energylm.LanguageModel")
        super().__init__(joint.lm, **options)
        self.joint, self.n, self.end, self.seed, self.block_tokens = joint, n, end, seed, block_tokens
        self.ends: list[tuple[float, float]] = []  # of every log-likelihood so far
        self._log_partitions: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}

    def get_model_info(self) -> dict[str, Any]:
        ends = {
            f"energylm_mean_{name}": math.fsum(values) / len(values)
            for name, values in zip(get_args(End), zip(*self.ends, strict=True), strict=False)
        }
        told = f"log P_LM(x | c) − E(c, x) − log Z(c) in nats, log Z from {self.n} samples, the {self.end} end"
        return {"energylm_convention": told, **ends}

    def log_likelihoods(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        """Greedy decoding is not defined for a joint model, so no continuation is said to be its own."""
        results = []
        for given, scored in pairs:
            given = given[-max(1, self.max_length - len(scored)) :]
            log_weight = float(self.joint.log_weights([given + scored], prefix_tokens=len(given))[0])
            lowest, highest = self._log_partition(given, len(scored))
            self.ends.append((log_weight - highest, log_weight - lowest))
            results.append((self.ends[-1][get_args(End).index(self.end)], False))
        return results

    def rolling_pairs(self, text: str) -> list[Pair]:
        ids = [self.prefix_token_id, *self.tok_encode(text)]
        starts = range(1, len(ids), self.block_tokens)
        return [(ids[:start], ids[start : start + self.block_tokens]) for start in starts]

    def continuation(self, given: list[int], options: Any, index: int) -> str:
        how = {"n": self.n, "max_new_tokens": options["max_gen_toks"], "seed": self.seed + index}
        return self.joint.sample(given, top_p=options.get("top_p"), **how).text

    def _log_partition(self, given: list[int], tokens: int) -> tuple[float, float]:
        """Both estimates of log Z; continuations of one context and length share it."""
        key = (tuple(given), tokens)
        if key not in self._log_partitions:
            told = self.joint.log_partition([given], n=self.n, max_new_tokens=tokens, seed=self.seed)
            self._log_partitions[key] = (float(told.lower[0]), float(told.upper[0]))
        return self._log_partitions[key]


class ClozeHarness(LM):  # type: ignore[misc]
    """A model that reads both sides: masked, Electric, two-tower."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.scorer = scorer

    @property
    def tokenizer_name(self) -> str:
        return self.scorer.name

    def get_model_info(self) -> dict[str, Any]:
        return {"energylm_convention": f"{self.scorer.convention}; no log-probability: compare it with its own kind"}

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        texts = [context + continuation for context, continuation in (request.args for request in requests)]
        results = []
        for request, told in zip(requests, self.scorer.token_scores(texts), strict=True):
            given = len(self.scorer.reader.read(request.args[0])) if request.args[0].strip() else 0
            results.append((math.fsum(told.token_scores[given:]), False))
        return results

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self.scorer.score([request.args[0] for request in requests])

    def generate_until(self, requests: list[Instance]) -> list[str]:
        raise ModelError(f"{self.scorer.name} fills gaps and continues no text; leave tasks that generate out")


def harness_model(
    pretrained: str, *, energy: str | None = None, device: str | None = None, dtype: str | None = None, **options: Any
) -> LM:
    """What `--model_args` describes: the keys are these, and those of the kind that `pretrained` and `energy` make."""
    folder = Path(str(pretrained)).expanduser()
    is_joint = (folder / MANIFEST).is_file() and read_json(folder / MANIFEST)["kind"] == JOINT
    try:
        if energy is not None:
            return JointHarness(ResidualModel.load(pretrained, energy, device=device, dtype=dtype), **options)
        if is_joint:
            return JointHarness(ResidualModel.from_pretrained(folder, device=device, dtype=dtype), **options)
        if (kind := kind_of(pretrained)) == CAUSAL:
            return CausalHarness(LanguageModel.from_pretrained(pretrained, device=device, dtype=dtype), **options)
        if kind == ENERGY:
            raise ModelError(f"{pretrained} is an energy; give it as energy=… beside pretrained=LANGUAGE-MODEL")
        return ClozeHarness(Scorer.from_pretrained(pretrained, device=device), **options)
    except TypeError as error:
        raise ConfigError(f"--model_args: {error}; `pydoc energylm.apps.harness` lists the keys") from None


def _known(additional: dict[str, Any] | None) -> dict[str, Any]:
    """What the harness adds of itself; batches are ours to cut, and an accelerator is ours to find."""
    given = {key: value for key, value in (additional or {}).items() if value is not None}
    ours = {"batch_size", "max_batch_size", *(["device"] if given.get("device") == DEFAULT_DEVICE else [])}
    return {key: value for key, value in given.items() if key not in ours}


lm_eval.api.registry.model_registry.register(NAME, target=CausalHarness)


def main() -> None:
    """The harness's own program, which knows our models."""
    with extra("harness"):
        from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
