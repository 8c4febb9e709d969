"""No gradients sent: your ranks pass activations on, but backwards wait for gradients.

case: example
kind: value
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    last = len(order) - 1
    programs = []
    for r, rank in enumerate(order):
        program = []
        for kind, m in rank:
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            if kind == "F" and 0 <= source <= last:
                program.append(("recv", kind, m))
            program.append((kind, m))
            if kind == "F" and 0 <= target <= last:
                program.append(("send", kind, m))
        programs.append(program)
    return programs
