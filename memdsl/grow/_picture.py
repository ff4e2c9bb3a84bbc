"""A picture of what made an answer."""

from typing import Any, TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ._attribute import Attribution


def draw(found: "Attribution", images: Any, output: int) -> "Figure":
    """Bars of what every row adds to an output, with the images of the rows above them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = max(len(found.ids), 1)
    figure = Figure(figsize=(1 + count, 2.4 if images is None else 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    if images is None:
        bars = figure.subplots()
    else:
        grid = figure.add_gridspec(2, count, height_ratios=[1, 1.6])
        for place, example in enumerate(np.asarray(found.ids)):
            axes = figure.add_subplot(grid[0, place])
            axes.imshow(np.asarray(images[int(example)]), cmap="gray_r")
            axes.set_axis_off()
        bars = figure.add_subplot(grid[1, :])
    parts = np.asarray(found.contributions)[:, output]
    places = np.arange(len(parts))
    bars.bar(places, parts, color=["tab:blue" if part >= 0 else "tab:red" for part in parts])
    bars.axhline(0, color="0.3", linewidth=0.8)
    bars.set_xticks(places, [str(example) for example in np.asarray(found.ids)])
    bars.set_xlim(-0.5, count - 0.5)
    bars.set_xlabel("training example")
    bars.set_ylabel(f"adds to output {output}")
    bars.spines[["top", "right"]].set_visible(False)
    answer, rest = float(found.answer[output]), float(found.rest[output])
    bars.set_title(f"{answer:.3g}, of which {rest:.3g} is not of these", fontsize="medium")
    return figure
