"""Findings: causes with evidence and, where possible, the repair."""

from __future__ import annotations
