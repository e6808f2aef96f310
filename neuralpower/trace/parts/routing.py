"""Routing of tokens over the experts of a mixture: data decide it, so it is a stated assumption.

`pairs` = tokens x experts per token products are to be made with the weights of `experts` experts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from neuralpower.errors import InputError
from neuralpower.layers.expert_load import Load, fitting

UNIFORM, WORST = "uniform", "worst"
NOTED = re.compile(r"routing [^:]+: (\d+) tokens? with (\d+) of (\d+) experts each")


@dataclass(frozen=True)
class Routing:
    """Assumed routing: the number of experts that a layer's tokens reach, and the tokens of each.

    uniform   each token draws its experts at random, all as likely: what a balanced router does
    worst     as many experts as there can be: all their weights are read
    a number  of tokens that each expert reached gets
    """

    name: str = UNIFORM
    tokens_per_expert: int | None = None

    @classmethod
    def parsed(cls, text: str) -> Routing:
        """The routing that "uniform", "worst" or a number names; raises InputError."""
        if text in (UNIFORM, WORST):
            return cls(text)
        if re.fullmatch(r"0*[1-9][0-9]{0,17}", text):
            return cls(text, int(text))
        said = "write uniform, worst, or how many tokens an expert gets, such as 4"
        raise InputError(f"routing {text!r}: {said}")

    def reached(self, pairs: int, per_token: int, experts: int) -> int:
        """Experts that get a token: at random E (1 - (1 - k / E)^T) of E on average, T tokens with k each."""
        most = max(min(pairs, experts), 1)
        if self.tokens_per_expert is not None:
            return min(-(-pairs // self.tokens_per_expert), most)
        if self.name == WORST:
            return most
        expected = experts * (1 - float((1 - min(per_token / experts, 1)) ** (pairs / per_token)))
        return min(max(round(expected), min(per_token, most)), most)

    def grouped(self, pairs: int, per_token: int, experts: int) -> tuple[int, int]:
        """(experts that are reached, rows of each) of one kernel for all of their products."""
        reached = self.reached(pairs, per_token, experts)
        return reached, max(round(pairs / reached), 1)

    def load(self, pairs: int, per_token: int, experts: int) -> Load:
        """The work of experts: pairs, experts that are reached, tokens of the fullest.

        With E experts and m tokens each in the mean, at random, the fullest gets about m + sqrt(2 m ln E)
        (Raab and Steger, "Balls into Bins", 1998, for many tokens).
        """
        hit, tokens = self.reached(pairs, per_token, experts), -(-pairs // per_token)
        mean = pairs / hit
        fullest = -(-pairs // hit)
        if self.tokens_per_expert is None and self.name == UNIFORM:
            fullest = round(mean + math.sqrt(2 * mean * math.log(hit)))
        return fitting(pairs, hit, min(max(fullest, -(-pairs // hit)), tokens))

    def note(self, pairs: int, per_token: int, experts: int) -> str:
        """The assumption as text."""
        hit = self.reached(pairs, per_token, experts)
        how = f"{self.tokens_per_expert} tokens each" if self.tokens_per_expert is not None else self.name
        count = pairs // per_token
        tokens = f"{count} token{'s' * (count != 1)} with {per_token} of {experts} experts each"
        return f"routing {how}: {tokens}; {hit} experts assumed active"


def noted(text: str) -> tuple[int, int, int] | None:
    """(tokens, experts of each, experts) of a `Routing.note`; None of other texts."""
    found = NOTED.match(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


ROUTING = Routing()
"""What is usual."""
