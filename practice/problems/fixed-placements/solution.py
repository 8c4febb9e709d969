"""Both rules start from the first layer of the second half; one spaces out, the other closes in.

Neither rule knows where the stages end. With 32 layers on 8 stages, uniform puts one conversion on
each of stages 4, 5, 6 and 7: three of the four relieve stages for which nobody waits, and FIR only
falls from 1.1195 to 1.1038. Bipolar puts two of four on the last stage and reaches 1.0682; the last
four layers reach 1.0004. With two stages, the whole second half is the last stage, and the three
rules are equally good.
"""


def placements(n_layers: int, budget: int) -> dict:
    """Layers and conversions -> {"uniform": layers, "bipolar": layers}, in ascending order."""
    first, front = n_layers // 2, budget // 2
    width = n_layers - 1 - first
    uniform = [n_layers - 1]
    if budget > 1:
        uniform = [first + round(i * width / (budget - 1)) for i in range(budget)]
    bipolar = [*range(first, first + front), *range(n_layers - (budget - front), n_layers)]
    return {"uniform": uniform, "bipolar": bipolar}
