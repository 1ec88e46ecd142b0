"""Sentences to scores: what a network computes, before any tree is summed."""
