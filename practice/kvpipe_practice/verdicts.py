"""From what happened to an answer's process to a failure in plain words."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

from . import wire
from .case import Case
from .problems import Problem
from .results import Failure, clean
from .runner import OUTPUT_LIMIT_BYTES, Outcome
from .values import describe, is_small

OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "Unable to allocate")
MAX_FRAMES = 12
MAX_TEXT = 2000


def failure_of(
    outcome: Outcome, problem: Problem, submission: Any, where: str, limit_s: float
) -> Failure:
    """The failure of any outcome that is not a value."""
    match outcome.kind:
        case "timeout":
            return timeout(outcome, submission, where, limit_s)
        case "dead":
            return dead(outcome.exit_code, where)
        case "memory":
            return out_of_memory(problem, where)
        case "output":
            text = f"printed more than {OUTPUT_LIMIT_BYTES // 2**20} MiB {where}"
            return Failure("output", text)
        case "raised":
            return raised(outcome.header, submission, problem, where)
        case "nofunction":
            return no_function(outcome.header, problem, submission)
        case "unsendable":
            detail = clean(str(outcome.header.get("message")))
            return Failure("type", f"your result cannot be judged: {detail}")
    detail = clean(str(outcome.header.get("message", "an unknown message"))[:MAX_TEXT])
    return Failure("malformed", f"your code wrote to the judge's channel {where}", (detail,))


def strings(value: Any) -> list[str]:
    """The strings of a list that came from an answer's process; of anything else, none."""
    items = value if isinstance(value, list) else []
    return [clean(item) for item in items if isinstance(item, str)]


def timeout(outcome: Outcome, submission: Any, where: str, limit_s: float) -> Failure:
    """Out of time, with the line of the answer that was running, if its process told."""
    lines = ["an endless loop, or work that grows much faster than the input?"]
    text = submission.source.splitlines()
    n = next((n for file, n, _ in outcome.hung if file == submission.file), 0)
    if 0 < n <= len(text):
        lines.insert(0, f"stopped in {submission.file}, line {n}: {text[n - 1].strip()}")
    return Failure("timeout", f"timeout {where} after {limit_s:g} s", tuple(lines))


def dead(exit_code: int | None, where: str) -> Failure:
    """A process that ended without a reply: by a signal, or by ending itself."""
    code = exit_code or 0
    if code >= 0:
        text = f"crashed: the process ended itself with exit code {code} {where}"
        return Failure("crash", text, ("a result must be returned; nothing was",))
    lines = [signal_name(-code)]
    if -code == 9:
        lines.append("often the system ends a process this way when memory runs out")
    return Failure("crash", f"crashed (signal {-code}) {where}", tuple(lines))


def not_started(file: str) -> Failure:
    """The kind first message for a stub nobody has worked on yet."""
    return Failure(
        "not_started",
        "nothing is written here yet, so this failure is as it should be",
        (f"open {file}, replace the line that raises, save, and test again",),
    )


def out_of_memory(problem: Problem, where: str, detail: str = "", frames: Any = ()) -> Failure:
    size = f"the limit is {problem.memory_bytes / 2**30:g} GiB more than at the start"
    lines = (size, detail) if detail else (size,)
    return Failure("memory", f"out of memory {where}", lines, frames=frames)


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name}: {signal.strsignal(number)}"
    except ValueError:
        return f"signal {number}"


def changed_inputs(outcome: Outcome, case: Case, said: str) -> Failure:
    """Which inputs are not as they came, before and after where that can be shown."""
    names, lines, kinds = list(case.inputs), [], set()
    found = outcome.header.get("changed")
    for entry in found[: len(names)] if isinstance(found, list) else []:
        match entry:
            case [int(i), tree] if 0 <= i < len(names):
                before = case.inputs[names[i]]
                kinds.add(type(before).__name__)
                lines.append(f"{names[i]} is not as it came")
                with contextlib.suppress(wire.WireError):
                    now = wire.decode(tree, outcome.block)
                    if is_small(before) and is_small(now):
                        lines += [f"before {describe(before)}", f"after  {describe(now)}"]
    if kinds & {"dict", "list"}:
        lines.append("build a new dict or list; `dict(x)` or `list(x)` copies one")
    else:
        lines.append(
            "work on a copy; methods that end in _ and operators such as /= change x itself"
        )
    return Failure("mutated", "your function changed its input", tuple(lines), said)


ADVICE = {
    "BdbQuit": "the judge has no keyboard for breakpoint(); run your file on its own, or print",
    "EOFError": "the judge has no keyboard for input(); run your file on its own",
}


def raised(header: dict, submission: Any, problem: Problem, where: str) -> Failure:
    """An exception, its frames from the learner's file on."""
    kinds = strings(header.get("kinds"))
    name = clean(str(header.get("type"))[:MAX_TEXT])
    message = clean(str(header.get("message"))[:MAX_TEXT])
    frames = clean_frames(header.get("frames"), submission.file)
    if "NotImplementedError" in kinds and raises_itself(frames, submission):
        return not_started(submission.file)
    if "MemoryError" in kinds or any(text in message for text in OUT_OF_MEMORY):
        return out_of_memory(problem, where, message.partition("\n")[0], frames)
    if "SystemExit" in kinds:
        return Failure("exit", f"your code called sys.exit {where}", frames=frames)
    text = f"{name}: {message}" if message else name
    advice = (ADVICE[name],) if name in ADVICE else ()
    return Failure("exception", f"{text}", advice, frames=frames)


def raises_itself(frames: tuple, submission: Any) -> bool:
    """Does the answer raise the error, as the stub does? Torch raises NotImplementedError too."""
    lines = submission.source.splitlines()
    if not frames or frames[-1][0] != submission.file or not 0 < frames[-1][1] <= len(lines):
        return False
    return "raise" in lines[frames[-1][1] - 1]


def clean_frames(frames: Any, file: str) -> tuple[tuple[str, int, str], ...]:
    """Frames from the first one in the learner's file on; anything malformed is dropped."""
    good = [
        (clean(frame[0]), frame[1], clean(frame[2]))
        for frame in (frames if isinstance(frames, list) else [])
        if isinstance(frame, list) and list(map(type, frame)) == [str, int, str]
    ]
    starts = [i for i, frame in enumerate(good) if frame[0] == file]
    return tuple(good[starts[0] :][:MAX_FRAMES]) if starts else ()


def no_function(header: dict, problem: Problem, submission: Any) -> Failure:
    names = strings(header.get("names"))[:10]
    has = f"it defines {', '.join(names)}" if names else "it defines no function"
    text = f"{submission.file} has no function {problem.function}; {has}"
    return Failure("nofunction", text, ("keep the name and the parameters of the stub",))
