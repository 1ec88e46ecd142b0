"""Nested named entity recognition with exact inference over latent lexicalised trees."""

__version__ = "0.1.0"
