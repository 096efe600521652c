"""Whether a policy is for a problem: the same space, the same actions, the same number of steps."""

from typing import Any

from ..errors import UserError
from ..problem import Problem
from .base import Profile, as_profile
from .network import NetworkPolicy
from .tables import TablePolicy


def fitting_profile(policy: Any, problem: Problem) -> Profile:
    """`as_profile` for a problem; raises unless the policy was made for its space and actions."""
    profile = as_profile(policy, problem.horizon, problem.first)
    whole = profile.join(profile.per_step)
    whole.check_grid(problem.grid)
    if isinstance(whole, TablePolicy) and whole.actions.shape[-1] != problem.actions.dim:
        raise UserError(
            f"the policy's actions have {whole.actions.shape[-1]} axes, and the problem's "
            f"{problem.actions.dim}; name the environment that it was planned for"
        )
    if isinstance(whole, NetworkPolicy) and whole.box != problem.actions:
        raise UserError(
            f"the network was made for other actions: for {whole.box.describe()}, and the "
            f"problem's are {problem.actions.describe()}; name the environment and the options "
            "that it was planned for"
        )
    return profile
