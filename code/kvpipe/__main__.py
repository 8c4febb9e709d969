"""`python -m kvpipe QUESTION`: ask a real model through the code of this book."""

import argparse

from kvpipe.checkpoints import DEFAULT, load
from kvpipe.generate import answer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kvpipe", description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--model", default=DEFAULT, help="a folder or a hub name (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer (%(default)s)")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    print(f"You: {options.question}\nModel: ", end="", flush=True)
    for piece in answer(model, tokenizer, options.question, options.tokens):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
