"""Renderers: they read results and do not know how these were measured."""
