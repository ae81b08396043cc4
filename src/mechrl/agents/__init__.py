"""Agents that have learned to discover circuits."""
