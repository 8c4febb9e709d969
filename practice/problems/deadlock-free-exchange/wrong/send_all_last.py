"""All sends last: your ranks keep their results to the end, while the others wait for the first.

case: example
kind: value
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    last = len(order) - 1
    programs = []
    for r, rank in enumerate(order):
        program, sends = [], []
        for kind, m in rank:
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            if 0 <= source <= last:
                program.append(("recv", kind, m))
            program.append((kind, m))
            if 0 <= target <= last:
                sends.append(("send", kind, m))
        programs.append(program + sends)
    return programs
