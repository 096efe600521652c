import pytest
from contest import SMALL, pretend

from mufield.compare.contenders import compare


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """All contenders, once, with their directory; those that learn a model only pretend."""
    directory = tmp_path_factory.mktemp("comparison")
    with pytest.MonkeyPatch.context() as patch:
        asked = pretend(patch)
        comparison = compare(SMALL, directory, progress=False)
    kinds = ("hallucinated", "greedy", "thompson", "bonus")
    assert [(each["optimism"], each["seed"]) for each in asked] == [
        (kind, seed) for kind in kinds for seed in SMALL.seeds
    ]
    return comparison, directory
