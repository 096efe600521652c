"""`mufield theory`: tables, JSON and the picture."""

import json

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from mufield import cli
from mufield.viz.theory import theory_figure

pytestmark = pytest.mark.slow


def test_tables_and_sentences_stand_in_the_terminal(ring, report, capsys, monkeypatch):
    asked = {}

    def made_before(run, **options):
        asked.update(options)
        return report

    monkeypatch.setattr("mufield.theory.report.make_report", made_before)
    words = ["--constants", "B_f=1,L_r=1", "--reference", "0.2", "--delta", "0.3"]
    code = cli.main(["theory", str(ring.directory), *words])
    said = capsys.readouterr().out
    assert code == 0
    assert asked["given"] == {"B_f": 1, "L_r": 1}
    assert (asked["reference"], asked["delta"]) == (0.2, 0.3)
    assert "theory-ring, gp, horizon 3" in said
    for name in ("L_f", "L_sigma", "L_pi", "L_r", "kappa", "B_f", "L-bar"):
        assert f"\n{name} " in said
    assert "assumption WellCalibratedModel: holds" in said
    assert "theorem GPRegretBound: the regret of 3 episodes is" in said
    assert "vacuous, as" in said


def test_json_holds_all_figures_and_a_picture_is_drawn(rooms, tmp_path, capsys):
    picture = tmp_path / "made" / "theory.png"
    code = cli.main(["theory", str(rooms.directory), "--json", "--out", str(picture)])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["environment"] == "four-rooms"
    assert [row["episode"] for row in document["episodes"]] == [1, 2]
    assert document["w1"][0] == [None] * 4
    assert {v["name"] for v in document["verdicts"]} >= {"lemma MFFlowW1Bound", "theorem main"}
    assert document["constants"]["reward"]["source"] == "estimate"
    with Image.open(picture) as image:
        assert image.size[0] > 1500


def test_mistakes_are_reported_in_one_line(ring, tmp_path, capsys):
    assert cli.main(["theory", str(tmp_path)]) == 2
    assert "there is no run" in capsys.readouterr().err
    assert cli.main(["theory", str(ring.directory), "--out", "picture.gif"]) == 2
    assert "expected a .png or .pdf file" in capsys.readouterr().err
    assert cli.main(["theory", str(ring.directory), "--constants", "L_q=1"]) == 2
    assert "no constant 'L_q'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def figure(report):
    return report, theory_figure(report)


def lines(axes):
    return {line.get_label(): line.get_ydata() for line in axes.lines}


def test_every_panel_shows_the_realised_beside_the_bound(figure):
    report, drawn = figure
    regret, ends, along, complexity, information, beta = drawn.axes
    totals = np.array([row.total_regret for row in report.rows])
    shown = lines(regret)["realised"]
    np.testing.assert_allclose(10 ** shown[totals > 0], totals[totals > 0])
    assert np.isnan(shown[totals <= 0]).all()
    np.testing.assert_allclose(
        lines(regret)["bound of the paper"], [row.total_bound for row in report.rows]
    )
    one = lines(ends)["bound of the paper, after one step"]
    np.testing.assert_allclose(one, report.distance_bounds[:, 1])
    assert len(lines(along)["realised"]) == report.horizon
    np.testing.assert_allclose(
        lines(complexity)["bound of the paper, for that"],
        [row.complexity_bound for row in report.rows],
    )
    np.testing.assert_allclose(
        lines(information)["realised"], [row.information for row in report.rows]
    )
    assert beta.get_title() == "beta"
    FigureCanvasAgg(drawn).draw()
    assert regret.get_yticklabels()[0].get_text().startswith("$10^")


def test_labels_do_not_run_into_each_other(figure):
    drawn = figure[1]
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in drawn.axes]
    boxes.append(drawn.legends[0].get_tightbbox(renderer))
    for place, box in enumerate(boxes):
        for other in boxes[place + 1 :]:
            apart = (
                box.x1 <= other.x0 or other.x1 <= box.x0 or box.y1 <= other.y0 or other.y1 <= box.y0
            )
            assert apart
