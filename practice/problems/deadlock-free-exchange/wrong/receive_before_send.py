"""Receive before send: your ranks take the next input before they give away their last result.

case: example
kind: value
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    last = len(order) - 1
    programs = []
    for r, rank in enumerate(order):
        program, send = [], []
        for kind, m in rank:
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            if 0 <= source <= last:
                program.append(("recv", kind, m))
            program += [*send, (kind, m)]
            send = [("send", kind, m)] if 0 <= target <= last else []
        programs.append(program + send)
    return programs
