r"""The constants of the paper's assumptions, and the growth of an error from step to step.

Every constant says where it is from, because a bound is proven only if all of its constants are.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ..errors import UserError

Source = Literal["given", "bound", "estimate"]
"""``"given"`` by the user; ``"bound"``, which the true constant cannot exceed; ``"estimate"``, the
largest value that was seen, which the true constant can only exceed."""

SYMBOLS = {
    "motion": "L_f",
    "spread": "L_sigma",
    "policy": "L_pi",
    "reward": "L_r",
    "stretch": "kappa",
    "norm": "B_f",
}


@dataclass(frozen=True)
class Constant:
    """One constant.

    Attributes:
        value: Its value.
        source: Where it is from.
        note: What people should know of it.
    """

    value: float
    source: Source
    note: str = ""

    def __post_init__(self) -> None:
        if not self.value >= 0:
            raise UserError(f"a constant must be 0 or more, got {self.value}")


@dataclass(frozen=True)
class Constants:
    r"""All constants of Sec. 5.

    Attributes:
        motion: $L_f$ of assumption LipschitzDynamics.
        spread: $L_\sigma$ of assumption LipschitzModelStd.
        policy: $L_\pi$ of assumption LipschitzPolicyAndReward. For a randomised policy it is the
            Lipschitz constant of the action's law in W1; the proofs then hold as they stand.
        reward: $L_r$ of the same assumption.
        stretch: $\kappa$, by how much the grid stretches the distance of two landings
            (`grid_stretch`). The paper has no grid, and 1 in its place.
        norm: $B_f$ of assumption RKHS, for the scaled displacement; None where there is no kernel.
    """

    motion: Constant
    spread: Constant
    policy: Constant
    reward: Constant
    stretch: Constant
    norm: Constant | None = None

    @property
    def estimated(self) -> list[str]:
        """The constants of the bounds that are only estimates; B_f enters through beta alone."""
        return [
            each.name
            for each in fields(self)
            if each.name != "norm" and getattr(self, each.name).source == "estimate"
        ]

    @property
    def finite(self) -> bool:
        """Whether all constants of the bounds are."""
        names = [each.name for each in fields(self) if each.name != "norm"]
        return all(getattr(self, name).value < float("inf") for name in names)

    def override(self, given: dict[str, Any]) -> "Constants":
        """The same with values of the user's, by the names of the attributes or the symbols."""
        names = {symbol: name for name, symbol in SYMBOLS.items()} | {n: n for n in SYMBOLS}
        found = {}
        for key, value in given.items():
            if key not in names:
                raise UserError(
                    f"there is no constant {key!r}; there are "
                    f"{', '.join(f'{n} ({s})' for n, s in SYMBOLS.items())}"
                )
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"the constant {key} must be a number, got {value!r}")
            found[names[key]] = Constant(float(value), "given")
        return replace(self, **found)

    def step_growth(self, beta: float) -> float:
        r"""What an error in W1 is multiplied with in one step at most.

        $$\kappa \cdot 2 (1 + L_\pi) [L_f + 2 \beta L_\sigma]$$
        """
        kappa, pi = self.stretch.value, self.policy.value
        return kappa * 2 * (1 + pi) * (self.motion.value + 2 * beta * self.spread.value)

    def growth(self, beta: float) -> float:
        r"""$\overline{L} = 1 + 2 (1 + L_\pi) [L_f + 2 \beta L_\sigma]$ (theorem main), with kappa.

        The one is added so that its powers never fall; `step_growth` alone gives sharper bounds.
        """
        return 1 + self.step_growth(beta)
