# The KV-Pipe Handbook. `make help` lists the commands.
PYTHON ?= python3
RUN := .venv/bin/python

.PHONY: help setup book test lab notebooks bench clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: ## install the tested packages into .venv
	@$(PYTHON) code/bootstrap.py

book: setup ## fetch the model, ask it a question, build the book
	@$(RUN) -m kvpipe "What is the capital of France?"
	@$(RUN) -m kvpipe.book

test: setup ## run all tests
	@$(RUN) -m pytest -q --rootdir code code/tests

lab: setup ## open JupyterLab on the notebooks
	@$(RUN) -m nbformat.sign notebooks/*.ipynb  # ours: JupyterLab may show their figures
	@$(RUN) -m jupyterlab --notebook-dir=.

notebooks: setup ## run every notebook again and keep its outputs
	@$(RUN) -m kvpipe.notebooks

bench: setup ## measure speed and memory beside transformers
	@$(RUN) -m kvpipe.bench $(ARGS)

clean: ## remove the built book and the environment
	rm -rf _build .venv
