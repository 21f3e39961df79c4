"""A trained thing becomes tables, plots and one page for people.

`tables`        one table, rendered as Markdown, for the terminal, and as JSON records
`plots`         figures through matplotlib's object interface
`report`        results.json, results.md, PNG plots and a self-contained report.html
`results_page`  docs/results.md from the JSON files kept in docs/results
"""
