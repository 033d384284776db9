"""A drawing shows the numbers that it is given."""

from matplotlib.text import Text

from trainer.plots import runs


def texts(figure):
    """Whatever is written in a figure."""
    figure.draw_without_rendering()  # which gives the ticks their labels
    return {text.get_text().strip() for text in figure.findobj(Text)}


def test_a_run_whose_name_looks_like_a_formula_is_named_as_it_is():
    run = {runs.NORM: [(0, 5.0), (1, 4.0)]}
    assert "lr$_{$" in texts(runs.draw_runs({"lr$_{$": run}, "lr$_{$"))
    assert {"_1", "lr$_{$"} <= texts(runs.draw_runs({"_1": run, "lr$_{$": run}, ""))


def test_a_sweep_marks_its_least_loss_and_spreads_values_by_their_size():
    lines = {"batch 4": [("1e-4", 4.5), ("3e-3", 4.125)], "batch 8": [("1e-4", 4.25)]}
    figure = runs.draw_sweep(lines, "lr")
    assert {"4.1250 at 3e-3", "batch 4", "batch 8", "1e-4", "lr"} <= texts(figure)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    words = runs.draw_sweep({"": [("cosine", 4.5), ("wsd", 4.25)]}, "schedule").axes[0]
    assert list(words.lines[0].get_xdata()) == [0, 1]
