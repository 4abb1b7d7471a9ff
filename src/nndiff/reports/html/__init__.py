"""The html report: one page that needs nothing else."""

from nndiff.reports.html.page import HtmlReport, render_html

__all__ = ["HtmlReport", "render_html"]
