"""Order changed: your ranks run all forwards first, which avoids the problem and changes the
schedule.

case: example
kind: value
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    last = len(order) - 1
    order = [sorted(rank, key=lambda op: op[0] == "B") for rank in order]
    programs = []
    for r, rank in enumerate(order):
        program = []
        for kind, m in rank:
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            if 0 <= source <= last:
                program.append(("recv", kind, m))
            program.append((kind, m))
            if 0 <= target <= last:
                program.append(("send", kind, m))
        programs.append(program)
    return programs
