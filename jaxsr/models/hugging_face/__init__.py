"""Causal language models by transformers' own torch code."""
