"""Text from the joint model of a language model and an energy: `energylm generate`."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from energylm.config.base import listed
from energylm.config.sampling import JointSampling, NextTokens
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.joint.generating import GenerateResult


class Generate(Verb):
    """Continue prompts by the joint model: draw candidates from the language model, keep one by its energy.

    Text on stdout; effective sample size, largest weight and energies on stderr.
    """

    examples = (
        'energylm generate runs/tiny/model --energy runs/energy/model --prompt "The city council" -n 256 --top-k 10',
        'energylm generate smollm2-135m --energy runs/bit/model --prompt "It was late" --chunks 5 --context-tokens 120',
        "energylm generate smollm2-135m --energy 'similarity:a storm at sea' --chat --prompt 'Tell me a story.'",
        'energylm generate runs/tiny/model --energy runs/energy/model --prompt "He was willing and" '
        "--method next-token",
        'energylm generate smollm2-135m --energy "similarity:a storm at sea" --beta 20 --prompt "Last night" -n 64',
        "energylm generate smollm2-135m --power 4 --sampler suffix -n 8 --temperature 0.25 --weights corrected "
        '--prompt "Last night"',
    )
    shortcuts: ClassVar = {
        "sampler": "sampling.sampler",
        "n": "sampling.n",
        "max_new_tokens": "sampling.max_new_tokens",
        "top_k": "sampling.truncation.top_k",
        "top_p": "sampling.truncation.top_p",
        "temperature": "sampling.truncation.temperature",
        "weights": "sampling.weights",
        "draws": "sampling.draws",
        "chunks": "sampling.chunks",
        "context_tokens": "sampling.context_tokens",
        "stop_at_eos": "sampling.stop_at_eos",
        "power": "sampling.power",
        "bound": "sampling.bound",
        "block_tokens": "sampling.block_tokens",
        "moves": "sampling.moves",
        "lookahead": "sampling.lookahead",
    }

    language_model: Annotated[str, Positional("LM")] = Field(
        description="A model folder, a GGUF file, a known model or a hub name."
    )
    energy: str | None = Field(
        None,
        description="An energy folder (`energylm energy train`); a score as KIND:TEXT, e.g. 'similarity:a storm at "
        "sea'; or a YAML file of several; none: the language model alone, to the power that --power gives.",
    )
    beta: float | None = Field(
        None, description="How strongly the energy weighs: 0 is the language model alone; none: the energy's own."
    )
    prompt: Annotated[tuple[str, ...], BeforeValidator(listed)] = Field(
        ("",), min_length=1, description="A text to continue; empty starts a new document."
    )
    chat: bool = Field(
        False, description="Each prompt is a user's message: the model's chat template is applied, and it answers."
    )
    method: Literal["joint", "autoregressive", "next-token"] = Field(
        "joint",
        description="joint: algorithm 1; autoregressive: token by token (slow); next-token: print the next token's "
        "probabilities, joint against base.",
    )
    sampling: JointSampling = Field(JointSampling(), description="Candidates and choice.")
    next_tokens: NextTokens = Field(NextTokens(), description="For the two token-by-token methods.")
    plain_text: bool = Field(
        False, description="Write no special tokens, end-of-text above all: for energies of windows within documents."
    )
    seed: int = Field(0, ge=0, description="The same seed gives the same text.")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.chat and self.method != "joint":
            raise ValueError(f"chat with method {self.method}: chats are answered by the joint method; leave one out")
        if self.energy is None and (self.sampling.power == 1 or self.method != "joint" or self.beta is not None):
            raise ValueError(
                "no energy came; give --energy, or take the joint method with a --power other than 1 and no --beta, "
                "which sharpens the language model alone (`energylm lm sample` draws from it as it is)"
            )
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate, locate_energy

        lm = locate(self.language_model)
        energy = "its own power" if self.energy is None else locate_energy(self.energy)
        options, tokens = self.sampling, self.next_tokens
        what = {
            "joint": f"would draw {options.n:,} candidates of {options.max_new_tokens} tokens, {options.chunks} in a "
            "row,",
            "autoregressive": f"would draw {options.max_new_tokens} tokens one by one, {tokens.candidates} × "
            f"{tokens.n:,} completions each,",
            "next-token": f"would draw {tokens.n:,} completions of {tokens.candidates} next tokens",
        }[self.method]
        return f"{what} for each of {len(self.prompt)} prompts from {lm} and choose by {energy}"

    def run(self, job: Job = DEFAULT_JOB) -> "GenerateResult":
        from energylm.verbs.joint.generating import generate

        return generate(self, job)

    def shown(self, result: Any) -> str:
        return ""  # each text was written as soon as it was there
