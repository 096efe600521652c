"""Q-learning as a contender of comparisons.

``python -m mufield compare discrete-rooms --import reproduction/contender.py --contenders ...``
"""

import reproduction.q_training  # noqa: F401 (registers it)
