"""Even and odd ranks: your odd ranks receive before they send; that fits some orders and not
others; decide from all lists, not from the rank's number.

case: gpipe
kind: value
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    last = len(order) - 1
    programs = []
    for r, rank in enumerate(order):
        program, send = [], []
        for kind, m in rank:
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            receive = [("recv", kind, m)] if 0 <= source <= last else []
            program += [*receive, *send] if r % 2 else [*send, *receive]
            program.append((kind, m))
            send = [("send", kind, m)] if 0 <= target <= last else []
        programs.append(program + send)
    return programs
