"""Agents that are trained to discover circuits."""
