"""Text from the joint model of a language model and an energy: `energylm generate`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from energylm.bundles.known_models import locate
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.residual_results import AutoregressiveSample, JointSample, NextTokenTable
from energylm.config.generate import GenerateConfig
from energylm.tables import Table, to_markdown


@dataclass(frozen=True)
class Generated:
    """What one prompt gave."""

    prompt: str
    result: JointSample | AutoregressiveSample | NextTokenTable

    def shown(self) -> str:
        """For people: the prompt with each text it was given, or the table of next tokens."""
        if isinstance(self.result, NextTokenTable):
            return to_markdown(next_token_numbers(self.result))
        texts = self.result.texts if isinstance(self.result, JointSample) else [self.result.text]
        return "".join(f"{self.prompt}{text}\n" for text in texts)

    def facts(self) -> str:
        """What it stands on, in one line."""
        result = self.result
        if isinstance(result, JointSample):
            energies, kept = result.energies, result.pools[-1].kept
            chosen = ", ".join(f"{float(energies[number]):.3f}" for number in kept)
            return (
                f"{len(energies):,} candidates worth {result.ess:.1f} independent ones, largest weight "
                f"{result.largest_share:.1%}; energies {float(energies.min()):.3f} to {float(energies.max()):.3f}, "
                f"kept: {chosen}"
            )
        tables = [result] if isinstance(result, NextTokenTable) else result.tables
        return (
            f"{len(tables[0].ess)} candidates with {tables[0].n:,} completions each, for each of {len(tables)} tokens"
        )

    def to_json(self) -> dict[str, Any]:
        return {"prompt": self.prompt, **self.result.to_json()}


def check_inputs(config: GenerateConfig) -> str:
    """Find both models without loading them; what would be done, in words."""
    lm, energy = locate(config.language_model), locate(config.energy)
    options, tokens = config.sampling, config.next_tokens
    what = {
        "joint": f"would draw {options.n:,} candidates of {options.max_new_tokens} tokens, {options.chunks} in a row,",
        "autoregressive": f"would draw {options.max_new_tokens} tokens one by one, {tokens.candidates} × {tokens.n:,} "
        "completions each,",
        "next-token": f"would draw {tokens.n:,} completions of {tokens.candidates} next tokens",
    }[config.method]
    return f"{what} for each of {len(config.prompts)} prompts from {lm} and choose by {energy}"


def generate_text(config: GenerateConfig) -> Iterator[Generated]:
    """One result a prompt, each as soon as it is there."""
    joint = ResidualModel.load(config.language_model, config.energy)
    for number, prompt in enumerate(config.prompts):
        yield Generated(prompt, _one(joint, config, prompt, number))


def _one(
    joint: ResidualModel, config: GenerateConfig, prompt: str, number: int
) -> JointSample | AutoregressiveSample | NextTokenTable:
    if config.method == "joint":
        return joint.sample_batch([prompt], config.sampling, seed=config.seed, first_context=number)[0]
    method = joint.next_token_table if config.method == "next-token" else joint.sample_autoregressive
    return method(
        prompt,
        max_new_tokens=config.sampling.max_new_tokens,
        candidates=config.next_tokens.candidates,
        n=config.next_tokens.n,
        keep=config.next_tokens.keep,
        stop_at_eos=config.sampling.stop_at_eos,
        seed=config.seed,
    )


def next_token_numbers(table: NextTokenTable, *, show: int = 5) -> Table:
    """The likeliest next tokens of both models, as in the paper's table 3."""
    rows = [[row["model"], row["rank"], row["text"], row["probability"]] for row in table.rows(show=show)]
    convention = (
        f"probabilities among the {len(table.base)} tokens kept, of candidates that hold {table.base_mass:.3g} of the "
        f"base's probability; {table.n:,} completions each"
    )
    return Table(["model", "rank", "token", "probability"], rows, convention=convention)
