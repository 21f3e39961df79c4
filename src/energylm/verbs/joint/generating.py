"""Prompts continued by a joint model, each shown as soon as it is there: the work of `energylm generate`."""

from dataclasses import dataclass

from energylm.bundles.language_model import LanguageModel
from energylm.bundles.next_tokens import AutoregressiveSample, NextTokenTable
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.residual_sampling import JointSample
from energylm.bundles.text_energy import Energy
from energylm.jobs.job import Job
from energylm.progress import say
from energylm.records import Record
from energylm.tables import to_markdown
from energylm.verbs.joint.generate import Generate

Drawn = JointSample | AutoregressiveSample | NextTokenTable


@dataclass(frozen=True, repr=False)
class Continuation(Record):
    """What a prompt gave."""

    prompt: str
    result: Drawn

    def shown(self, *, with_prompt: bool = True) -> str:
        """For people: the prompt with each text it was given (of a chat the answers), or the table of next tokens."""
        if isinstance(self.result, NextTokenTable):
            return to_markdown(self.result.table)
        texts = self.result.texts if isinstance(self.result, JointSample) else [self.result.text]
        return "".join(f"{self.prompt if with_prompt else ''}{text}\n" for text in texts)

    def facts(self) -> str:
        """What it stands on, in one line."""
        result = self.result
        if isinstance(result, JointSample) and result.report.sampler != "resample":
            return result.report.verdict
        if isinstance(result, JointSample):
            energies, kept = result.energies, result.pools[-1].kept
            allowed = energies[energies.isfinite()]
            forbidden = f", {len(energies) - len(allowed):,} forbidden" if len(allowed) < len(energies) else ""
            chosen = ", ".join(f"{float(energies[number]):.3f}" for number in kept)
            return (
                f"{len(energies):,} candidates worth {result.ess:.1f} independent ones, largest weight "
                f"{result.largest_share:.1%}; energies {float(allowed.min()):.3f} to {float(allowed.max()):.3f}"
                f"{forbidden}, kept: {chosen}"
            )
        tables = [result] if isinstance(result, NextTokenTable) else result.tables
        return (
            f"{len(tables[0].ess)} candidates with {tables[0].n:,} completions each, for each of {len(tables)} tokens"
        )


@dataclass(frozen=True, repr=False)
class GenerateResult(Record):
    results: tuple[Continuation, ...]  # one a prompt


def generate(verb: Generate, job: Job) -> GenerateResult:
    """Continue every prompt."""
    joint = _joint(verb)
    results = []
    for index, prompt in enumerate(verb.prompt):
        continuation = Continuation(prompt, _drawn(joint, verb, prompt, index))
        results.append(continuation)
        if job.emit is not None:
            job.emit(continuation.shown(with_prompt=not verb.chat))
            say(continuation.facts())
    return GenerateResult(tuple(results))


def _joint(verb: Generate) -> ResidualModel:
    if verb.energy is not None:
        return ResidualModel.load(verb.language_model, verb.energy, beta=verb.beta, plain_text=verb.plain_text)
    lm = LanguageModel.from_pretrained(verb.language_model)
    flat = Energy.from_function(lambda texts: [0.0] * len(texts), better="lower", name="none")
    return ResidualModel(lm.without_special_tokens() if verb.plain_text else lm, flat)


def _drawn(joint: ResidualModel, verb: Generate, prompt: str, index: int) -> Drawn:
    if verb.chat:
        chat = [{"role": "user", "content": prompt}]
        return joint.chat_batch([chat], verb.sampling, seed=verb.seed, first_context=index)[0]
    if verb.method == "joint":
        return joint.sample_batch([prompt], verb.sampling, seed=verb.seed, first_context=index)[0]
    method = joint.next_token_table if verb.method == "next-token" else joint.sample_autoregressive
    return method(
        prompt,
        max_new_tokens=verb.sampling.max_new_tokens,
        candidates=verb.next_tokens.candidates,
        n=verb.next_tokens.n,
        keep=verb.next_tokens.keep,
        stop_at_eos=verb.sampling.stop_at_eos,
        seed=verb.seed,
    )
