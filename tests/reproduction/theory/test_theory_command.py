"""`python -m reproduction theory`: tables and JSON."""

import json

import pytest

from reproduction.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_the_tables_stand_in_the_terminal_and_json_has_all_figures(rooms, capsys):
    words = ["theory", str(rooms.directory), "--constants", "L_f=1,kappa=1", "--reference", "5"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "L_f = 1, L_sigma = inf" in said
    for name in ("lemma MFFlowW1Bound", "theorem main", "LipschitzDynamics", "RKHS and Kernel"):
        assert name in said
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["episode"] for row in document["episodes"]] == [1, 2]
    assert document["episodes"][0]["w1_end"] is None
    assert document["constants"]["motion"] == 1
    assert document["verdicts"][0]["verdict"] in ("holds", "vacuous")


def test_mistakes_are_reported_in_one_line(rooms, tmp_path, capsys):
    assert main(["theory", str(tmp_path)]) == 2
    assert "there is no run" in capsys.readouterr().err
    assert main(["theory", str(rooms.directory), "--constants", "L_q=1"]) == 2
    assert "no constant 'L_q'" in capsys.readouterr().err
