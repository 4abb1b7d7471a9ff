"""The result as JSON: the contract for programs, and what `nndiff report` reads back."""

from __future__ import annotations

from nndiff import result_json
from nndiff.reports import ReportOptions
from nndiff.result import Comparison


class JsonReport:
    """Render the result as JSON; nothing is left out whatever the options say."""

    name = "json"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        return result_json.dumps(comparison)
