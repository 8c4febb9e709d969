"""Adapters that put what the chapters built under Hugging Face models. Support module."""
