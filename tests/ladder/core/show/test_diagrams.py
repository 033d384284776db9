"""The drawings of ladder/core/show/diagrams.py."""

from types import SimpleNamespace

from matplotlib.colors import to_hex

from ladder.core.show import diagrams


def test_an_array_has_the_same_colour_in_every_traffic_chart():
    def colours(sectors):
        lines = [SimpleNamespace(buffer=name, sectors=n) for name, n in sectors.items()]
        rung = SimpleNamespace(id="1", idea="a rung", is_own_file=True)
        axes = diagrams.traffic([SimpleNamespace(lines=lines)], [rung], "title").axes[0]
        bars, names = axes.get_legend_handles_labels()
        return {name: to_hex(bar[0].get_facecolor()) for name, bar in zip(names, bars, strict=True)}

    first = colours({"qkv": 90, "probs": 10})
    second = colours({"dout": 60, "probs": 30, "qkv": 10})
    assert {name: second[name] for name in first} == first
    assert len(set(second.values())) == 3
