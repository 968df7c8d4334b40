"""Renderers: they read results and know nothing of how these were measured."""
