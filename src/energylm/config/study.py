"""A human study of pairs of completions: its design, what it is made from, and a simulated panel that answers it.

The defaults are those of Deng et al. 2020, appendix A.4: 333 pairs, three raters each, qualification on real text
against samples with a pass mark of 2/3, one attention check in every four comparisons.
"""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.generate import JointSampling
from energylm.config.sampling import Truncation

RESERVED = ("real", "shuffled")  # what known answers are made of; no model may be called so
_ROUNDING = 1e-9  # 2/3 of 24 is 16, not the next integer above 16.000000000000001


class Qualification(Config):
    """Real text against samples, answered before the study; whoever misses the pass mark is let go."""

    items: int = Field(24, ge=0, description="Length; a coin-tosser passes 24 items at 2/3 in 7.6 % of cases. 0: none.")
    pass_mark: float = Field(2 / 3, gt=0.5, le=1, description="Share of right answers that is needed.")

    @property
    def needed(self) -> int:
        """Right answers needed."""
        return needed_answers(self.items, self.pass_mark)


class Checks(Config):
    """Comparisons with a known answer among the others, which they resemble."""

    every: int = Field(4, ge=2, description="One comparison of this many is a check, at a random place among them.")
    wrong: Literal["sample", "shuffled"] = Field(
        "sample",
        description="What stands against real text: sample: a model's completion (the paper); shuffled: the real text "
        "with its words in random order, which nobody who reads prefers.",
    )
    items: int | None = Field(None, ge=1, description="Different checks; none = enough for one rater who does it all.")


class Exclusion(Config):
    """Which answers the report drops; what was stored stays as it is."""

    check_mark: float = Field(
        2 / 3, ge=0, le=1, description="A rater who passed a smaller share of the checks is dropped; 0 drops nobody."
    )
    failed_blocks: bool = Field(
        True, description="Drop the answers that share a block of comparisons with a failed check (the paper's rule)."
    )
    unchecked: Literal["drop", "keep"] = Field(
        "drop", description="What becomes of answers in a block whose check was never answered (a rater who left)."
    )

    def needed_checks(self, checks: int) -> int:
        """Checks that a rater must have passed of those answered."""
        return needed_answers(checks, self.check_mark)


class StudyDesign(Config):
    """What serving and reporting a study rest on; kept in the study's folder."""

    title: str = Field("Which continuation is better?", description="Heading of the raters' page.")
    question: str = Field(
        "Both texts begin with the same words. Which of the two goes on more sensibly? Texts may stop in mid-sentence.",
        description="What raters are asked, on every page.",
    )
    ties: bool = Field(False, description="Whether raters may answer that neither is better.")
    raters_per_pair: int = Field(3, ge=1, description="Votes on each pair, all from different raters.")
    max_pairs_per_rater: int | None = Field(None, ge=1, description="Pairs that one rater may answer; none = all.")
    qualification: Qualification = Field(Qualification(), description="Before the study.")
    checks: Checks = Field(Checks(), description="During the study.")
    exclusion: Exclusion = Field(Exclusion(), description="After the study.")
    abandon_after_seconds: float = Field(
        1800, gt=0, description="A pair that was opened and not answered for so long may go to another rater."
    )
    seed: int = Field(0, ge=0, description="Of order, sides and places of checks.")

    def checks_needed(self, pairs: int) -> int:
        """Different checks for a rater who answers as many pairs as one may: a check for each begun block."""
        most = min(pairs, self.max_pairs_per_rater or pairs)
        return math.ceil(most / (self.checks.every - 1))


class CompletionsFile(Config):
    """A model's completions, written elsewhere."""

    name: str = Field(min_length=1, description="What the report calls the model.")
    file: str = Field(description='JSONL: {"prefix": …, "completion": …} a line.')


class StudyModel(Config):
    """A model that completes the prefixes itself."""

    name: str = Field(min_length=1, description="What the report calls the model.")
    language_model: str = Field(description="A model folder, a GGUF file, a known model or a hub name.")
    energy: str | None = Field(None, description="An energy folder: completions come by joint sampling.")
    candidates: int = Field(
        10_000, ge=2, description="Candidates of joint sampling for each completion (the paper draws 10,000)."
    )
    truncation: Truncation = Field(Truncation(top_k=10), description="The paper's human evaluation takes top-k 10.")

    def joint_sampling(self, new_tokens: int) -> JointSampling:
        return JointSampling(
            n=self.candidates, max_new_tokens=new_tokens, truncation=self.truncation, stop_at_eos=False
        )


class StudyWindows(Config):
    """Where prefixes and their real endings come from when models complete them."""

    source: str = Field(description="A corpus folder (`energylm corpus build`), or a text or JSONL file.")
    split: str = Field("test", description="Of the corpus; text that no model was trained on.")
    length: int = Field(160, ge=2, description="Tokens of prefix and completion together.")
    prefix: int = Field(120, ge=1, description="Tokens of the prefix.")

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.prefix >= self.length:
            raise ValueError(f"`prefix` {self.prefix} leaves nothing of {self.length} tokens; shorten it")
        return self


class StudyConfig(Config):
    """A study to be made: from files of completions, or from models that complete the windows of a corpus."""

    completions: tuple[CompletionsFile, ...] = Field((), description="Files of completions, one a model.")
    real: str | None = Field(
        None, description='JSONL with the real endings, {"prefix": …, "completion": …} a line, for known answers.'
    )
    models: tuple[StudyModel, ...] = Field((), description="Models that complete prefixes, in place of files.")
    windows: StudyWindows | None = Field(None, description="Prefixes for the models.")
    comparisons: tuple[tuple[str, str], ...] | None = Field(
        None, description="Baseline and compared model, by name; none = every two, in the order given."
    )
    pairs: int | None = Field(333, ge=1, description="Prefixes of each comparison; none = as many as there are.")
    design: StudyDesign = Field(StudyDesign(), description="How it is run and judged.")

    @property
    def names(self) -> tuple[str, ...]:
        return (*(one.name for one in self.completions), *(one.name for one in self.models))

    @property
    def compared(self) -> tuple[tuple[str, str], ...]:
        if self.comparisons is not None:
            return self.comparisons
        return tuple((first, second) for place, first in enumerate(self.names) for second in self.names[place + 1 :])

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if bool(self.completions) == bool(self.models):
            raise ValueError("give either completions (files) or models (with windows), not both and not neither")
        if bool(self.models) != (self.windows is not None):
            raise ValueError("models complete the prefixes of windows: give both, and neither with files")
        if self.models and self.real is not None:
            raise ValueError("real endings come with the windows; `real` goes with files of completions")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(self.names) < 2:
            raise ValueError(f"a comparison needs two models or more, came {len(self.names)}")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"every model needs a name of its own, came {', '.join(self.names)}")
        if taken := [name for name in self.names if name in RESERVED]:
            raise ValueError(f"{taken[0]!r} means text with a known answer; call the model something else, e.g. human")
        seen = set()
        for first, second in self.compared:
            for name in (first, second):
                if name not in self.names:
                    raise ValueError(f"comparison names {name!r}; models: {', '.join(self.names)}")
            if first == second or frozenset((first, second)) in seen:
                raise ValueError(f"comparison of {first!r} with {second!r} comes twice or compares a model with itself")
            seen.add(frozenset((first, second)))
        return self


class PanelConfig(Config):
    """A panel of simulated raters, for trying a study out and for proving its report."""

    study: str = Field(description="The study's folder.")
    good: int = Field(30, ge=0, description="Raters who read: right in `accuracy` of known answers, who have a taste.")
    random: int = Field(15, ge=0, description="Raters who toss a coin throughout.")
    lazy: int = Field(15, ge=0, description="Raters who read in the qualification and then always take the left text.")
    accuracy: float = Field(0.9, ge=0.5, le=1, description="A reader's chance to be right where the answer is known.")
    strengths: dict[str, float] = Field(
        {},
        description="Planted log-strength of each model: a reader takes the second of a pair in "
        "1 / (1 + exp(s_first − s_second)) of cases; 0 where none is given.",
    )
    spread: float = Field(
        1.0, ge=0, description="Standard deviation of that log-odds over pairs: what readers see alike in a pair."
    )
    tie_rate: float = Field(0.1, ge=0, le=1, description="How often a reader says that neither is better, if allowed.")
    seed: int = Field(0, ge=0, description="Of arrivals and answers.")

    @property
    def raters(self) -> int:
        return self.good + self.random + self.lazy

    @model_validator(mode="after")
    def _has_somebody(self) -> Self:
        if not self.raters:
            raise ValueError("a panel of no raters; give good, random or lazy ones")
        return self


def needed_answers(items: int, mark: float) -> int:
    """The smallest count of `items` that reaches the share `mark`."""
    return math.ceil(items * mark - _ROUNDING)
